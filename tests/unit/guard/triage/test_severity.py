"""Severity: what real lines of drivers are taken for, and what no line, name or number can make of itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpsguard.guard.evidence import DeviceHealth, Evidence, Observation, Source, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Incident
from mpsguard.guard.sensors.kernel_lines import parse_xid_line
from mpsguard.guard.triage import severity
from mpsguard.guard.triage.catalog import Level, catalog
from mpsguard.guard.triage.verdict import triage
from mpsguard.guard.triage.xid_words import QUALIFIERS

Line = tuple[int, str, str, Level, bool, bool]
GPU = "0000:18:00"
LOST = FaultClass.DEVICE

# The words behind number, process and name; where they are from; what they are taken for: level, whether a device fault
# is proven, and whether they close one.
LINES: list[Line] = [
    (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
     "NVIDIA/NVSentinel, csv_test.go; kubernetes-sigs/dra-driver-nvidia-gpu #1441", Level.INFORMATIONAL, True, True),
    (154, "GPU recovery action changed from 0x2 (OS Reboot) to 0x0 (None)", "the words of driver 610",
     Level.INFORMATIONAL, True, True),
    (154, "GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "open driver 595.45.04, gpu.c",
     Level.INFORMATIONAL, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "leptonai/gpud, kmsg_test.go",
     Level.INFORMATIONAL, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)", "open driver 595.45.04, gpu.c",
     Level.INFORMATIONAL, True, False),
    (154, "GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
     "leptonai/gpud, kmsg_test.go", Level.DEVICE, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", "reports on driver 610",
     Level.DEVICE, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "open driver 595.45.04, gpu.c",
     Level.DEVICE, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "reports on driver 610",
     Level.DEVICE, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x6 (Bus Reset)", "nvmlDeviceGpuRecoveryAction_t",
     Level.DEVICE, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x7 (System Reboot)", "nvmlDeviceGpuRecoveryAction_t",
     Level.DEVICE, True, False),
    (154, "GPU recovery action changed from 0x0 to 0x1", "made: numbers alone", Level.DEVICE, True, False),
    (154, "GPU recovery action changed from None to GPU Reset", "made: names alone", Level.DEVICE, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x1 (Something New)", "made: a new name",
     Level.DEVICE, False, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x8 (Tray Reboot)", "made: a new number",
     Level.DEVICE, False, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x8 (Something New)", "made: both new",
     Level.INFORMATIONAL, True, False),
    (154, "GPU recovery action changed from 0x0 (None) to 0x1 (None)", "made: they contradict each other",
     Level.INFORMATIONAL, True, False),
    (154, "GPU recovery action changed", "Bumblebee-Project/Bumblebee #677 and others: without the action",
     Level.INFORMATIONAL, True, False),
    (94, "Contained: SM (0x1). RST: No, D-RST: No", "akash-network/support #244", Level.CLIENT, True, False),
    (94, "Contained: CE User Channel (0x9). RST: No, D-RST: No", "open driver, kern_gpu_error_cont_ga100.c",
     Level.CLIENT, True, False),
    (94, "Contained: DED CBC (0x1, 0x0). physAddr: 0x18f31d80 RST: No, D-RST: Yes",
     "open driver, kern_gpu_error_cont_ga100.c with MIG", Level.CLIENT, True, False),
    (94, "Contained ECC error", "leptonai/gpud #1174", Level.CLIENT, True, False),
    (94, "Ch 00000008", "words that are not known", Level.CLIENT, True, False),
    (94, "Contained: PMU. RST: Yes, D-RST: No", "open driver, kern_gpu_error_cont_gb100.c", Level.DEVICE, True, False),
    (94, "GSP-RISCV instance 0 unknown fatal error", "open driver, kernel_gsp_gb100.c", Level.DEVICE, True, False),
    (95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No", "comment in kern_gpu_error_cont_ga100.c",
     Level.DEVICE, True, False),
    (95, "Uncontained: FBHUB. RST: No, D-RST: No", "open driver, kern_gpu_error_cont_gb100.c",
     Level.CLIENT, True, False),
    (95, "something new", "words that are not known", Level.DEVICE, False, False),
    (48, ("An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x18f31d80 "
     "partition 16, subpartition 3."), "a report on driver 550.90.07", Level.DEVICE, False, False),
    (63, "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.",
     "a report on driver 550.90.07", Level.INFORMATIONAL, True, False),
    (63, "Row remapping pending again", "leptonai/gpud, xid_test.go", Level.INFORMATIONAL, True, False),
    (63, "Dynamic Page Retirement: New page retired, reboot to activate (0x00000000000fe5b9).",
     "vendor's page retirement guide", Level.INFORMATIONAL, True, False),
    (64, "Row remapping failure", "leptonai/gpud, xid_test.go", Level.DEVICE, True, False),
    (64, "Dynamic Page Retirement: FATAL, unable to retire page (0x3fdf5e)", "a report on a P100",
     Level.DEVICE, True, False),
    (92, "High single-bit ECC error rate", "vendor's Xid catalog", Level.INFORMATIONAL, True, False),
    (79, "GPU has fallen off the bus.", "leptonai/gpud, kmsg_test.go", Level.DEVICE, True, False),
    (79, "Ch 00000008", "words that are not known", Level.DEVICE, False, False),
    (62, "0000(0000) 00000000 00000000", "public reports", Level.DEVICE, True, False),
    (119, "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 10 (FREE) (0xa55a0210 0x0).",
     "leptonai/gpud, dmesg-with-xid-119.log", Level.DEVICE, True, False),
    (120, "GSP task exception: instruction access page fault (cause:0xc) @ pc:0x1b00000", "public reports",
     Level.DEVICE, True, False),
    (140, "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:0, LTC:0, MMU:0, PCIE:0",
     "open driver, kern_gpu_tu102.c", Level.DEVICE, True, False),
    (136, "NVLink: Link training failed for link 3(0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
     "open driver, kernel_nvlink_gh100.c", Level.DEVICE, True, False),
    (137, "RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error", "NVIDIA/nccl #2241",
     Level.INFORMATIONAL, True, False),
    (74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
     "NVIDIA/NVSentinel, csv_test.go", Level.DEVICE, False, False),
    (74, "NVLink: fatal error detected on link 14(0x40800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
     "WORKFLOW_NVLINK_ERR, NVIDIA/NVSentinel #364", Level.INFORMATIONAL, True, False),
    (74, "NVLink: fatal error detected on link 8(0x800001, 0x0, 0x0, 0x1, 0x0, 0x0, 0x0)",
     "made: another register, too", Level.DEVICE, False, False),
    (74, "NVLink: failed to train link 3 to remote PCI:0000:4d:00", "open driver, kernel_nvlinkcorelibtrain.c",
     Level.ENGINE, True, False),
    (144, "SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
     "leptonai/gpud #1160", Level.INFORMATIONAL, True, False),
    (145, "RLW_SRC_TRACK Fatal XC0 i0 Link 0 (0x00000007 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
     "leptonai/gpud #1160", Level.DEVICE, True, False),
    (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
     "leptonai/gpud #1174", Level.INFORMATIONAL, True, False),
    (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
     "NVIDIA/NVSentinel, csv_test.go", Level.DEVICE, False, False),
    (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
     "leptonai/gpud #1174", Level.DEVICE, False, False),
    (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 00 (0x00000013 0x00000001 0x00000000 0x00000000)",
     "leptonai/gpud, nvlink_logs_test.go", Level.INFORMATIONAL, True, False),
    (149, "Placeholder message", "words that are not known", Level.ENGINE, True, False),
    (45, "Ch 0000000c caused by previous Xid 149", "open-gpu-kernel-modules #1150", Level.SYMPATHETIC, True, False),
    (109, "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005", "leptonai/gpud #46", Level.ENGINE, True, False),
    (31, ("Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. Fault is "
     "of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"), "akash-network/support #244", Level.CLIENT, True, False),
    (171, "DRAM uncorrectable", "public reports, driver 580", Level.INFORMATIONAL, True, False),
]  # fmt: skip


def line(number: int, words: str, name: str | None = None) -> Xid:
    process = "" if name is None else f" pid=7, name={name},"
    found = parse_xid_line(f"NVRM: Xid (PCI:{GPU}): {number},{process} {words}")
    assert found is not None
    return found.xid


def seen(what: Observation, source: Source = Source.KERNEL_LOG, at: float = 10.0, gpu: str | None = GPU) -> Evidence:
    return Evidence(source, observed_at=at, what=what, happened_at=at, gpu=gpu, serial=f"{source}:{at}:{what}")


def verdicts(*evidence: Evidence) -> Sequence[Incident]:
    return triage(evidence)


@pytest.mark.parametrize("known", LINES, ids=[f"{number}: {origin}" for number, _, origin, *_ in LINES])
@pytest.mark.parametrize("name", [None, "python3", "<unknown>"])
def test_real_lines(known: Line, name: str | None) -> None:
    number, words, _, level, proven, closes = known
    found = severity.of(seen(line(number, words, name)))
    assert found is not None
    assert (found.level, found.proven, found.closes) == (level, proven, closes)
    classes = [(one.fault_class, one.confidence) for one in verdicts(seen(line(number, words, name)))]
    if level is Level.DEVICE:
        assert classes == [(LOST, Confidence.PROVEN if proven else Confidence.LIKELY)]
    else:
        assert LOST not in [fault_class for fault_class, _ in classes]
        assert bool(classes) == (level in (Level.CLIENT, Level.ENGINE))


def test_every_row_is_said_by_a_line() -> None:
    fitting = [
        next((row for row in QUALIFIERS if number in row.numbers and fits(row.words, words)), None)
        for number, words, *_ in LINES
    ]
    # SEC_FAULT: its line is not public.
    assert [row.says for row in QUALIFIERS if row not in fitting] == ["SEC_FAULT: ..."]


def fits(words: str, text: str) -> bool:
    return re.fullmatch(words, text, re.ASCII | re.IGNORECASE) is not None


NAMES = st.one_of(
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1, max_size=15),
    # Whatever part of a driver's words fits into a name of 15 bytes, behind a comma.
    st.builds(
        lambda words, at, before: f"{before}{words[at : at + 13]}"[:15],
        st.sampled_from([words for _, words, *_ in LINES] + [row.says for row in QUALIFIERS]),
        st.integers(0, 60),
        st.sampled_from([",", ", ", "a,", "a, ", ",,"]),
    ),
    st.sampled_from([",A Nonfatal XC0", ",A Fatal XC0 i0", ", Uncontained:", ",GSP task panic", ",SEC_FAULT: x"]),
)


@given(st.sampled_from(LINES), NAMES)
def test_a_process_name_changes_no_severity(known: Line, name: str) -> None:
    number, words = known[:2]
    usual = severity.of(seen(line(number, words, "python3")))
    assert severity.of(seen(line(number, words, name))) == usual


# The beginnings of all that rows say, as far as they fit into a name, and short forms of them.
BEGINNINGS = sorted(
    {f"{before}{words}"[:15] for _, words, *_ in LINES for before in (",", ", ", "a,", "a, ")}
    | {
        ",A Nonfatal XC0",
        ",A Fatal XC0 i0",
        ", Uncontained:",
        ",GSP task panic",
        ",SEC_FAULT: x",
        ",Contained:a (",
        ",0000 00000000",
    }
)


@pytest.mark.parametrize("known", LINES, ids=[f"{number}: {origin}" for number, _, origin, *_ in LINES])
def test_no_beginning_of_a_drivers_words_as_a_name_changes_a_severity(known: Line) -> None:
    number, words = known[:2]
    usual = severity.of(seen(line(number, words, "python3")))
    assert {name for name in BEGINNINGS if severity.of(seen(line(number, words, name))) != usual} == set()


NUMBERS = st.sampled_from(sorted(catalog()))
WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=80),
    # The words of another number.
    st.sampled_from([words for _, words, *_ in LINES]),
)


@given(NUMBERS, WORDS, NAMES)
def test_unknown_words_of_a_number_prove_no_device_fault(number: int, words: str, name: str) -> None:
    assume(words.strip(" ,"))
    assume(not any(number in row.numbers and fits(row.words, words.strip()) for row in QUALIFIERS))
    found = severity.of(seen(line(number, words, name)))
    assert found is not None
    assert found.level is not Level.DEVICE or not found.proven
    for one in verdicts(seen(line(number, words, name))):
        assert one.fault_class is not LOST or one.confidence is Confidence.LIKELY


@given(NUMBERS.filter(lambda n: catalog()[n].immediate in ("IGNORE", "RESTART_APP", "")), WORDS, st.booleans())
def test_what_the_catalog_calls_informational_or_a_clients_is_no_device_fault(
    number: int, words: str, without: bool
) -> None:
    entry = catalog()[number]
    assume(entry.level is not Level.DEVICE)
    assume(not any(number in row.numbers and fits(row.words, words.strip()) for row in QUALIFIERS))
    source = Source.NVML if without else Source.KERNEL_LOG
    xid = Xid(number, None, "") if without else line(number, words, "x")
    assert all(one.fault_class is not LOST for one in verdicts(seen(xid, source)))


def by_nvml(number: int, words: str) -> list[Evidence] | None:
    """What NVML tells of a line, with what it reads after it; None for what it has no means to tell."""
    told = [seen(Xid(number, None, ""), Source.NVML, 10.002)]
    if number == 154:
        action = re.search(r" to 0x([0-7])", words)
        if action is None or "New" in words or "0x1 (None)" in words:
            return None
        value = int(action[1])
        told.append(seen(DeviceHealth("recovery_action", value, value in {1, 2, 6, 7}), Source.NVML, 10.003))
    elif number in (94, 95) and "RST" in words:
        fatal = " RST: Yes" in words
        what = "poison_uncontained" if fatal else "poison_contained"
        told.append(seen(DeviceHealth(what, 0, fatal), Source.NVML, 10.002))
    elif number == 48:
        told.append(seen(DeviceHealth("ecc_double_bit", 0, True), Source.NVML, 10.002))
    elif number == 74 or 144 <= number <= 150 or "GSP-RISCV" in words or "new" in words:
        # A link's error has no severity there; the recovery action that follows it has.
        return None
    return told


@pytest.mark.parametrize(("number", "words"), [(number, words) for number, words, *_ in LINES])
def test_kernel_log_and_nvml_come_to_the_same_verdict(number: int, words: str) -> None:
    told = by_nvml(number, words)
    kernel = seen(line(number, words, "x"))
    if told is not None:
        assert classes_of(*told) == classes_of(kernel)
        assert classes_of(*told, kernel) == classes_of(kernel)
    else:
        # The event without words changes nothing of what the words say.
        assert classes_of(seen(Xid(number, None, ""), Source.NVML, 10.002), kernel) == classes_of(kernel)


def classes_of(*evidence: Evidence) -> set[FaultClass]:
    return {one.fault_class for one in verdicts(*evidence)}


DBE = line(48, next(words for number, words, *_ in LINES if number == 48), "<unknown>")
CONTAINED = line(94, "Contained: SM (0x1). RST: No, D-RST: No", "<unknown>")
UNCONTAINED = line(95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No", "<unknown>")


def test_lost_data_wait_for_the_message_on_how_far_the_damage_went() -> None:
    # A report on driver 550.90.07: 48, 63 23 ms later, 94 another 1.5 ms later.
    lost = seen(DBE, at=10.0)
    [early] = triage([lost], 10.03)
    assert (early.fault_class, early.confidence) == (FaultClass.ENGINE, Confidence.UNKNOWN)
    remapped = seen(line(63, "Row Remapper: New row (0x0000000018f31d80) marked for remapping.", "x"), at=10.023)
    [settled] = triage([lost, remapped, seen(CONTAINED, at=10.025)], 10.03)
    assert (settled.fault_class, settled.xids) == (FaultClass.ENGINE, (48, 63, 94))
    [alone] = triage([lost], 10.6)
    assert (alone.fault_class, alone.confidence) == (LOST, Confidence.LIKELY)
    [worse] = triage([lost, seen(UNCONTAINED, at=10.025)], 10.03)
    assert (worse.fault_class, worse.confidence) == (LOST, Confidence.PROVEN)


@given(
    st.permutations(
        [
            (74, "NVLink: fatal error detected on link 1(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
            (74, "NVLink: failed to train link 3 to remote PCI:0000:4d:00"),
        ]
    )
)
def test_of_several_lines_with_one_number_the_gravest_counts(order: list[tuple[int, str]]) -> None:
    both = [seen(line(number, words), at=10.0 + later / 100) for later, (number, words) in enumerate(order)]
    assert classes_of(*both) == {FaultClass.ENGINE}


def test_one_burst_told_by_both_is_one_incident() -> None:
    both = [
        seen(xid, source, at + later)
        for xid, at in ((DBE, 10.0), (CONTAINED, 10.025))
        for source, later in ((Source.KERNEL_LOG, 0.0), (Source.NVML, 0.002))
    ]
    both.append(seen(DeviceHealth("ecc_double_bit", 0, True), Source.NVML, 10.003))
    both.append(seen(DeviceHealth("row_remap_pending", 1, False), Source.NVML, 10.03))
    [found] = triage(both, 10.05)
    assert (found.fault_class, found.xids) == (FaultClass.ENGINE, (48, 94))


@given(st.permutations([(DBE, 10.0), (CONTAINED, 10.01), (UNCONTAINED, 10.02)]), st.integers(1, 3))
def test_what_was_not_contained_counts_whatever_else_was(order: list[tuple[Xid, float]], count: int) -> None:
    there = [seen(xid, at=at) for xid, at in order[:count]]
    device = any(xid is UNCONTAINED for xid, _ in order[:count]) or [xid for xid, _ in order[:count]] == [DBE]
    assert (LOST in classes_of(*there)) == device


@pytest.mark.parametrize("what", ["ecc_double_bit", "pcie_fatal_error", "pcie_inaccessible"])
def test_readings_that_do_not_prove_a_device_fault(what: str) -> None:
    [found] = verdicts(seen(DeviceHealth(what, 1, True), Source.NVML))
    assert (found.fault_class, found.confidence) == (LOST, Confidence.LIKELY)


@pytest.mark.parametrize(
    "what", ["gpu_lost", "fallen_off_bus", "recovery_action", "row_remap_failed", "gpu_unavailable"]
)
def test_readings_that_prove_one(what: str) -> None:
    [found] = verdicts(seen(DeviceHealth(what, 1, True), Source.NVML))
    assert (found.fault_class, found.confidence) == (LOST, Confidence.PROVEN)
