"""What the kernel shows of GPUs."""

import os
from pathlib import Path

from mpsguard.linux.nvidia import nvidia_gpus


def test_device_nodes_are_open_to_a_user_by_their_modes(tmp_path: Path) -> None:
    """A machine without nodes keeps no user away; what is no node of a GPU counts for nothing."""
    other, group = os.getuid() + 1, os.getgid()
    assert nvidia_gpus.open_to(other, group + 1, tmp_path)
    modes = {"nvidiactl": 0o666, "nvidia0": 0o660, "nvidia-uvm": 0o666, "nvidia-modeset": 0o600, "nvidia0.rules": 0o600}
    for name, mode in modes.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    assert not nvidia_gpus.open_to(other, group + 1, tmp_path)
    assert nvidia_gpus.open_to(other, group, tmp_path)
    assert nvidia_gpus.open_to(os.getuid(), group + 1, tmp_path)
    (tmp_path / "nvidia0").chmod(0o666)
    assert nvidia_gpus.open_to(other, group + 1, tmp_path)
