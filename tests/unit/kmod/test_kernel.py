"""Kernels: headers that are not there, signatures that are wanted; and what the loaded module is."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from kmod_patch import loaded
from kmod_patch.build import build, require_key, sign
from kmod_patch.cli import main
from kmod_patch.dkms import Layout, package_version, remove
from kmod_patch.errors import BuildError, KernelError, KmodError
from kmod_patch.kernel import Headers, Key, find_headers, require_loadable, why_only_signed
from kmod_patch.program import run, told
from kmod_patch.tree import open_tree
from tests.unit.kmod import trees


def test_missing_headers_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = trees.make(tmp_path / "tree")
    before = trees.contents(tmp_path)
    assert main(["build", str(tree), "--kernel", "9.9.9-none", "--output", str(tmp_path)]) == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert "no headers of kernel 9.9.9-none" in line
    assert "linux-headers-9.9.9-none" in line
    assert trees.contents(tmp_path) == before


def test_debian_s_two_part_headers_are_found(tmp_path: Path) -> None:
    common, flavour = tmp_path / "common", tmp_path / "flavour"
    (flavour / "include").mkdir(parents=True)
    common.mkdir()
    (flavour / "Makefile").write_text(f"include {common}/Makefile\n")
    assert find_headers("6.1", flavour) == Headers("6.1", flavour, common)


def test_headers_in_one_part(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "Makefile").write_text("all:\n")
    assert find_headers("6.1", tmp_path) == Headers("6.1", tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("lockdown", "enforced", "said"),
    [
        ("[none] integrity confidentiality\n", "N\n", None),
        ("none [integrity] confidentiality\n", "N\n", "locked down (integrity)"),
        ("none integrity [confidentiality]\n", "N\n", "locked down (confidentiality)"),
        ("", "Y\n", "enforces signatures"),
        ("", "", None),
    ],
)
def test_whether_only_signed_modules_load(tmp_path: Path, lockdown: str, enforced: str, said: str | None) -> None:
    (tmp_path / "lockdown").write_text(lockdown)
    (tmp_path / "enforced").write_text(enforced)
    why = why_only_signed(tmp_path / "lockdown", tmp_path / "enforced")
    assert (why is None) if said is None else (why is not None and said in why)


def test_an_unsigned_module_for_a_locked_kernel_is_refused() -> None:
    with pytest.raises(KernelError, match="give --key and --cert"):
        require_loadable(platform.release(), None, "it is locked down (integrity)")
    require_loadable("9.9.9-other", None, "it is locked down (integrity)")
    require_loadable(platform.release(), Key(Path("k"), Path("c")), "it is locked down (integrity)")
    require_loadable(platform.release(), None, None)


def test_key_without_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(trees.make(tmp_path / "t")), "--key", "k"]) == 7
    assert "go together" in capsys.readouterr().err


def headers_with_signer(tmp_path: Path, script: str) -> Headers:
    signer = tmp_path / "scripts" / "sign-file"
    signer.parent.mkdir()
    signer.write_text(script)
    signer.chmod(0o755)
    return Headers("6.1", tmp_path, tmp_path)


def test_a_key_that_cannot_be_read_is_reported_before_anything_is_built(tmp_path: Path) -> None:
    headers = headers_with_signer(tmp_path, "#!/bin/sh\n")
    tree = open_tree(trees.make(tmp_path / "tree"))
    with pytest.raises(KernelError, match="nokey: cannot be read"):
        build(tree, headers, tmp_path, Key(tmp_path / "nokey", tmp_path / "nocert"))
    (tmp_path / "key").touch()
    with pytest.raises(KernelError, match="no program to sign"):
        require_key(Key(tmp_path / "key", tmp_path / "key"), Headers("6.1", tmp_path / "x", tmp_path))


def test_the_kernel_s_own_program_signs(tmp_path: Path) -> None:
    headers = headers_with_signer(tmp_path, '#!/bin/sh\necho "$1 $2 $3" >> "$4"\n')
    module = tmp_path / "m.ko"
    module.write_text("")
    sign(module, headers, Key(tmp_path / "k", tmp_path / "c"))
    assert module.read_text() == f"sha256 {tmp_path / 'k'} {tmp_path / 'c'}\n"


def test_a_signature_that_fails_is_reported(tmp_path: Path) -> None:
    headers = headers_with_signer(tmp_path, "#!/bin/sh\necho 'error: wrong key'\nexit 1\n")
    with pytest.raises(KernelError, match="sign-file: error: wrong key"):
        sign(tmp_path / "m", headers, Key(tmp_path / "k", tmp_path / "c"))


def test_no_place_for_the_output(tmp_path: Path) -> None:
    tree = open_tree(trees.make(tmp_path / "tree"))
    with pytest.raises(BuildError, match="is not a directory"):
        build(tree, Headers("6.1", tmp_path, tmp_path), tmp_path / "nowhere", None)


def test_programs_have_a_deadline_and_last_words() -> None:
    with pytest.raises(KmodError, match="sleep did not end within"):
        run(["sleep", "60"], deadline_s=0.05, failure=BuildError)
    with pytest.raises(BuildError, match=r"sh: c\.c:3: error: bad"):
        run(["sh", "-c", "echo c.c:3: error: bad; echo make: stop; exit 2"], deadline_s=10, failure=BuildError)
    with pytest.raises(KmodError, match="nonesuch-program is not installed"):
        run(["nonesuch-program"], deadline_s=10, failure=BuildError)
    assert told("") == ""
    assert told("a\nb\n") == "b"


def module(root: Path, **parameters: str) -> Path:
    (root / "parameters").mkdir(parents=True)
    for name, value in parameters.items():
        (root / "parameters" / name).write_text(f"{value}\n")
    return root


def test_status_of_what_is_loaded(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text("580.1.2\n")
    parameters = {"uvm_fault_isolation": "1", "uvm_fault_isolation_version": "1.0", "uvm_other": "3"}
    ours = loaded.read(module(tmp_path / "a", **parameters, uvm_fault_isolation_agents="1"), version)
    assert (ours.state, ours.driver, ours.version) == ("ours", "580.1.2", "1.0")
    assert ours.parameters == {"uvm_fault_isolation": "1", "uvm_fault_isolation_agents": "1"}
    assert ours.summary.endswith("on where a TSG is shared")
    unheard = loaded.read(module(tmp_path / "c", **parameters, uvm_fault_isolation_agents="0"), version)
    assert "but not now" in unheard.summary
    alone = module(tmp_path / "d", **parameters, uvm_fault_isolation_without_agent="1")
    assert "but not now" not in loaded.read(alone, version).summary
    stock = loaded.read(module(tmp_path / "b", uvm_other="3"), version)
    assert stock.state == "stock"
    assert "ends its whole group" in stock.summary
    assert loaded.read(tmp_path / "none", version).state == "not loaded"


def test_dkms_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert package_version("580.1.2").startswith("580.1.2+mpsguard")
    assert remove(Layout(tmp_path)) == []
    assert main(["dkms", "--remove", "--root", str(tmp_path)]) == 0
    assert "nothing of ours" in capsys.readouterr().out
    assert main(["dkms", "--root", str(tmp_path)]) == 6
    assert "names no TREE" in capsys.readouterr().err


def test_without_dkms_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = trees.make(tmp_path / "tree")
    headers = tmp_path / "headers"
    (headers / "include").mkdir(parents=True)
    (headers / "Makefile").write_text("all:\n")
    monkeypatch.setenv("PATH", "/nonexistent")
    before = trees.contents(tmp_path)
    assert main(["dkms", str(tree), "--root", str(tmp_path), "--kernel", "9.9", "--headers", str(headers)]) == 6
    assert "dkms is not installed" in capsys.readouterr().err
    assert trees.contents(tmp_path) == before
