"""CUDA_VISIBLE_DEVICES as jobs have it: which GPUs the guard of a drop-in takes for its own."""

from __future__ import annotations

import pytest

from mpsguard.guard.dropin.start_environment import visible_gpus

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"

FORMS: list[tuple[str, str | None, list[str]]] = [
    ("the daemon's own default", None, []),
    ("CUDA programming guide: an empty string shows none", "", []),
    ("CUDA programming guide", "2,1", ["2", "1"]),
    ("CUDA programming guide: what follows an invalid entry is ignored", "0,2,-1,1", ["0", "2"]),
    ("CUDA programming guide: an abbreviated name", "GPU-8932f937", ["GPU-8932f937"]),
    ("MPS manual: names rather than numbers", f"{UUID},GPU-aa", [UUID, "GPU-aa"]),
    ("ray-project/ray #7014, #1653: Slurm without --gres", "NoDevFiles", []),
    ("ray-project/ray #28064: a number twice", "0,1,2,3,0", []),
    ("argonne-lcf/user-guides, enable_mps_polaris.sh", "0,1,2,3", ["0", "1", "2", "3"]),
    ("eth-cscs/cscs-docs #12: SLURM_JOB_GPUS, of one digit", "3", ["3"]),
    ("pytorch/pytorch #92315: what follows a number is ignored", "1gpu2,2ampere", ["1", "2"]),
    ("pytorch/pytorch #92315: a negative number", "0, 1, 2, -1, 3", ["0", "1", "2"]),
    ("pytorch/pytorch #92315: a number twice", "0, 1, 2, 1", []),
    ("pytorch/pytorch #92315: signs", "2, +3, -0, 5", ["2", "3", "0", "5"]),
    ("pytorch/pytorch #92315: words", "one,two,3,4", []),
    ("pytorch/pytorch #92315: words at the end", "4,3,two,one", ["4", "3"]),
    ("pytorch/pytorch #92315: a number after names", "GPU-9e8d35e3,2", ["GPU-9e8d35e3"]),
    ("pytorch/pytorch #92315: a name twice", "GPU-9e8d35e3,GPU-9e8d35e3", []),
    ("pytorch/pytorch #90543: HTCondor's short names", "GPU-8932f9", ["GPU-8932f9"]),
    ("pytorch/pytorch #84879: a range is its first number (driver 510)", "0-2", ["0"]),
    (
        "vllm-project/vllm #41848",
        "MIG-377e0049-554c-540b-93c6-d0976f8426cb",
        ["MIG-377e0049-554c-540b-93c6-d0976f8426cb"],
    ),
    ("the name of a MIG device before 470", f"MIG-{UUID}/1/0", [f"MIG-{UUID}/1/0"]),
    ("autogluon's settings: blanks around", " 1 , 0 ", ["1", "0"]),
    ("autogluon's settings: numbers are none after a name", "GPU-abc,1", ["GPU-abc"]),
    ("a trailing comma", "0,1,", ["0", "1"]),
    ("a leading comma", ",0", []),
    ("a bus address", "00000000:01:00.0", ["0"]),
    ("none", "-1", []),
    ("the word of NVIDIA_VISIBLE_DEVICES", "all", []),
    ("no GPU has such a number", "0,12345,1", ["0"]),
    ("a line break", "0\n", ["0"]),
    ("a quotation mark that a unit file has left", '"0,1"', []),
]


@pytest.mark.parametrize(("variable", "gpus"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS])
def test_the_gpus_are_those_that_cuda_shows(variable: str | None, gpus: list[str]) -> None:
    assert visible_gpus(variable) == gpus


def test_a_number_without_end_is_read() -> None:
    assert visible_gpus("0," + "9" * 100_000)[0] == "0"
