"""Measures the bus. Event: `rate`, bytes a second from pinned memory to the GPU."""

import argparse

from tests.gpu.checkpoint.images_program import bus_rate
from tests.gpu.checkpoint.telling import emit, run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    emit("rate", rate=bus_rate(parser.parse_args().device))


if __name__ == "__main__":
    run(main)
