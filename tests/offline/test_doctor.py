"""Facts of machines, sound and unsound, and what is said of them; and that this one can be looked over."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.offline import disk_speed, machine_facts
from adaptive_rec.offline.disk_speed import DiskSpeed
from adaptive_rec.offline.doctor import Finding, findings, runs_on, satisfies
from adaptive_rec.offline.machine_facts import Cuda, Facts, FileSystemFacts
from adaptive_rec.system.process_use import core_shares

GIB = 1 << 30
GPU = Cuda("12.8", "570.10", "", (("H100", (9, 0)),), ("sm_80", "sm_90", "compute_90"), "3.5.0", "")
SOUND = Facts(
    python="3.11.9",
    versions={"torch": "2.13.0+cpu", "numpy": "2.2.1"},
    required={"python": ">=3.11", "torch": ">=2.10,<2.16", "numpy": ">=2.0"},
    cuda=Cuda(),
    openmp=True,
    numba_cache_error="",
    cores=8,
    core_share=None,
    environment={},
    memory_total_bytes=64 * GIB,
    memory_available_bytes=60 * GIB,
    shared_memory_error="",
    dev_shm_bytes=64 << 20,
    disk=FileSystemFacts("runs", "", "ext4", 100 * GIB, 0.002, DiskSpeed(64 << 20, 0.1, 30_000, 1.0, 0.2)),
    port=8470,
    port_error="",
    runtime_files=[
        ("/run/user/1/adaptive-rec", "folder", 0o700, True),
        ("/run/user/1/adaptive-rec/7.json", "file", 0o600, True),
    ],
)


def worst(facts: Facts) -> list[Finding]:
    return [finding for finding in findings(facts) if finding.level != "ok"]


@pytest.mark.parametrize("facts", [SOUND, replace(SOUND, cuda=GPU), replace(SOUND, core_share=8.0, runtime_files=[])])
def test_a_sound_machine_has_no_findings(facts: Facts) -> None:
    assert worst(facts) == []
    assert {finding.area for finding in findings(facts)} == {
        "versions", "device", "kernels", "threads", "memory", "disk", "service", "clock",
    }  # fmt: skip


TORCHREC_9 = {"torchrec": "1.9.0", "fbgemm-gpu": "1.9.0"}
UNSOUND: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("python", {"python": "3.10.2"}, "versions", "problem", "must be >=3.11"),
    ("absent", {"versions": {"torch": None}}, "versions", "problem", "torch is not installed"),
    ("old", {"versions": {"torch": "2.9.1"}}, "versions", "problem", "torch must be >=2.10,<2.16, is 2.9.1"),
    ("new", {"versions": {"torch": "2.16.0+cu130"}}, "versions", "problem", "is 2.16.0+cu130"),
    ("torchrec", {"torchrec_versions": TORCHREC_9}, "versions", "note", "torch 2.13.0+cpu do not go together"),
    ("fbgemm", {"torchrec_versions": {"torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.9.0"}}, "versions", "note", "do not go together"),
    ("old fbgemm", {"torchrec_versions": {"fbgemm-gpu": "0.8.0"}}, "versions", "note", "do not go together"),
    ("no fbgemm", {"torchrec_versions": {"torchrec": "1.8.0"}}, "versions", "note", "without FBGEMM"),
    ("two fbgemm", {"torchrec_versions": {"fbgemm-gpu": "1.8", "fbgemm-gpu-cpu": "1.8"}}, "versions", "note", "overwrite"),
    ("cpu build", {"cuda": Cuda(None, "570.10")}, "device", "problem", "torch is a build for CPUs"),
    ("old driver", {"cuda": Cuda("12.8", "450.1", "driver too old")}, "device", "problem", "under driver 450.1: driver too old"),
    ("old gpu", {"cuda": replace(GPU, devices=(("K80", (3, 7)),))}, "device", "problem", "torch has code for sm_80"),
    ("no triton", {"cuda": replace(GPU, triton=None)}, "device", "problem", "Triton is not installed"),
    ("no pinning", {"cuda": replace(GPU, pinned="denied")}, "device", "problem", "pinned memory cannot be had: denied"),
    ("no openmp", {"openmp": False}, "kernels", "note", "run on one thread"),
    ("layer", {"environment": {"NUMBA_THREADING_LAYER": "workqueue"}}, "kernels", "note", "is not heeded"),
    ("cache", {"numba_cache_error": "/x cannot be written"}, "kernels", "note", "compiles them anew"),
    ("quota", {"core_share": 2.0}, "threads", "note", "gets time on 2.0 of them"),
    ("variable", {"environment": {"OMP_NUM_THREADS": "1"}}, "threads", "note", "OMP_NUM_THREADS=1 leaves cores idle"),
    ("waiting", {"environment": {"OMP_WAIT_POLICY": "ACTIVE"}}, "threads", "note", "decides how threads wait"),
    ("memory", {"memory_available_bytes": GIB}, "memory", "note", "only 1.0 GiB of 64.0 GiB"),
    ("shared", {"shared_memory_error": "denied"}, "memory", "problem", "cannot be shared with the dashboard: denied"),
    ("read-only", {"disk": FileSystemFacts("runs", "Read-only file system")}, "disk", "problem", "cannot be written: Read-only"),
    ("slow", {"disk": replace(SOUND.disk, speed=DiskSpeed(64 << 20, 9.0))}, "disk", "note", "checkpoints will take long"),
    ("turning disk", {"disk": replace(SOUND.disk, speed=DiskSpeed(64 << 20, 0.1, 300, 3.0))}, "disk", "note", "steps will wait"),
    ("slow sync", {"disk": replace(SOUND.disk, sync_seconds=2.0)}, "disk", "note", "checkpoints will take long"),
    ("tmpfs", {"disk": replace(SOUND.disk, kind="tmpfs")}, "disk", "note", "is in memory (tmpfs)"),
    ("full", {"disk": replace(SOUND.disk, free_bytes=5 << 20)}, "disk", "note", "has only 0.0 GiB free"),
    ("port", {"port_error": "it is taken"}, "service", "note", "port 8470 cannot be listened on: it is taken"),
    ("folder", {"runtime_files": [("/f", "folder", 0o755, True)]}, "service", "problem", "must have mode 700, it has 755"),
    ("file", {"runtime_files": [("/f/1.json", "file", 0o644, True)]}, "service", "problem", "must have mode 600, it has 644"),
    ("stranger", {"runtime_files": [("/f", "folder", 0o700, False)]}, "service", "problem", "belongs to another user"),
    ("clock", {"clock_ahead_seconds": 3600.0}, "clock", "note", "the clock is at least 3,600 s behind"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "area", "level", "text"), [case[1:] for case in UNSOUND], ids=[c[0] for c in UNSOUND]
)
def test_each_fault_is_the_only_finding_and_has_a_remedy(
    changes: dict[str, Any], area: str, level: str, text: str
) -> None:
    (finding,) = worst(replace(SOUND, **changes))
    assert (finding.area, finding.level) == (area, level)
    assert text in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("number", "torch"), [(5, "2.10.0"), (6, "2.11.0"), (7, "2.12.1"), (8, "2.13.0+cpu"), (9, "2.14.1+cu130")]
)
def test_versions_of_torchrec_that_go_with_a_torch_are_named(number: int, torch: str) -> None:
    """By FBGEMM's table of releases: `_fbgemm_torch_compat_table` of fbgemm-gpu 1.9.0."""
    sound = replace(SOUND, versions={**SOUND.versions, "torch": torch})
    fitting = {"torchrec": f"1.{number}.0", "fbgemm-gpu-cpu": f"1.{number}.2"}
    assert worst(replace(sound, torchrec_versions=fitting)) == []
    (found,) = worst(replace(sound, torchrec_versions={name: "1.4.0" for name in fitting}))
    assert found.text == f"torchrec 1.4.0, fbgemm-gpu-cpu 1.4.0 and torch {torch} do not go together: TorchRec may not load"
    assert found.remedy == f"pip install --no-deps 'torchrec==1.{number}.*' 'fbgemm-gpu-cpu==1.{number}.*'"


@pytest.mark.parametrize(
    ("version", "wanted", "holds"),
    [
        ("2.13.0+cpu", ">=2.10,<2.16", True), ("2.9", ">=2.10", False), ("2.10", ">=2.10.0", True), ("2.16", "<2.16", False),
        ("3.12.0rc1", ">=3.11", True), ("1.2", "", True), ("1.4.5", "~=1.4.2", True), ("1.5.0", "~=1.4.2", False),
        ("1.4.5", "==1.4.*", True), ("1.4.5", "!=1.4.5", False), ("1.4", "==1.4.0", True), ("2", ">1.9,!=2.1", True),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(version: str, wanted: str, holds: bool) -> None:
    assert satisfies(version, wanted) == holds


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ("sm_80",), False), ((8, 6), ("sm_80",), True), ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((9, 0), ("sm_90a",), True), ((3, 7), ("sm_50", "compute_50"), False), ((10, 0), ("sm_100",), True), ((7, 5), (), True),
    ],
)  # fmt: skip
def test_a_gpu_runs_code_of_its_generation_or_translates_older(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    assert runs_on(capability, architectures) == runs


# This machine --------------------------------------------------------------------------------------------------------


def test_requirements_are_those_of_the_package_without_extras() -> None:
    found = machine_facts.requirements()
    assert ">=3.11" in found["python"].split(",")
    assert {"torch", "numpy", "numba", "fastapi"} <= found.keys()
    assert "pytest" not in found
    assert "<" in found["torch"]


def test_the_disk_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    tried = machine_facts.disk(tmp_path / "not" / "yet", size_bytes=2 << 20)
    assert tried.error == ""
    assert tried.folder == str(tmp_path)
    assert (tried.speed.written_bytes, tried.speed.rows_read) == (2 << 20, (2 << 20) // 4096)
    assert min(tried.speed.write_seconds, tried.speed.read_seconds, tried.speed.read_cpu_seconds) > 0
    assert list(tmp_path.iterdir()) == []


def test_files_that_try_the_disk_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing remains of them, whatever ends the command."""
    seen: list[list[Path]] = []
    read = disk_speed._read
    monkeypatch.setattr(disk_speed, "FILE_BYTES", 1 << 20)
    monkeypatch.setattr(disk_speed, "_read", lambda *files: [seen.append(list(tmp_path.iterdir())), read(*files)][1])
    assert disk_speed.measure_disk(tmp_path, 3 << 20).written_bytes == 3 << 20
    assert seen == [[]]


def test_a_disk_is_tried_with_what_it_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(tmp_path)
    monkeypatch.setattr(disk_speed.os, "statvfs", lambda _: SimpleNamespace(f_frsize=room.f_frsize, f_bavail=1 << 20 >> 12))
    most = int(disk_speed.PART_OF_ROOM * room.f_frsize * (1 << 20 >> 12))
    assert 0 < disk_speed.measure_disk(tmp_path).written_bytes <= most
    monkeypatch.setattr(disk_speed.os, "statvfs", lambda _: SimpleNamespace(f_frsize=4096, f_bavail=1))
    assert disk_speed.measure_disk(tmp_path) == DiskSpeed()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine_facts.tempfile, "TemporaryFile", denied)
    assert machine_facts.disk(tmp_path, 1).error == "Permission denied"


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert machine_facts.why_not_listening(holder.getsockname()[1]) == "it is taken"
    assert machine_facts.why_not_listening(0) == ""


def test_limits_of_a_container_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert list(core_shares(tmp_path)) == [2.5]
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert not list(core_shares(tmp_path))
    assert not list(core_shares(tmp_path / "gone"))


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw\nb {tmp_path} tmpfs rw\nc {tmp_path}/deeper xfs rw\n")
    assert machine_facts.file_system(tmp_path, mounts) == "tmpfs"
    assert machine_facts.file_system(tmp_path, tmp_path / "gone") == ""


def test_the_driver_is_read_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Sun Jan\n")
    assert machine_facts.driver_version(file) == "570.86.10"
    assert machine_facts.driver_version(tmp_path / "gone") is None


def test_modes_of_runtime_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert machine_facts.runtime_files() == []
    folder = tmp_path / "adaptive-rec"
    folder.mkdir(mode=0o700)
    (folder / "7.json").touch()
    os.chmod(folder / "7.json", 0o640)
    assert machine_facts.runtime_files() == [
        (str(folder), "folder", 0o700, True),
        (str(folder / "7.json"), "file", 0o640, True),
    ]


def test_the_command_examines_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(machine_facts, "TRIED_BYTES", 1 << 20)
    code = main(["doctor", "--out", str(tmp_path / "runs"), "--port", "0", "--json"])
    expected = json.loads(capsys.readouterr().out)
    assert code == any(finding["level"] == "problem" for finding in expected["findings"])
    assert expected["facts"]["cores"] == len(os.sched_getaffinity(0))
    assert expected["facts"]["versions"]["torch"].startswith("2.")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("changes", "code"), [({}, 0), ({"port_error": "x"}, 0), ({"python": "3.9"}, 1)])
def test_only_problems_make_the_exit_code_1(
    changes: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_facts, "collect_facts", lambda *_: replace(SOUND, **changes))
    assert main(["doctor"]) == code
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == f"{code} problems, {int('port_error' in changes)} notes".replace(
        "1 problems", "1 problem"
    ).replace("1 notes", "1 note")
    for finding in worst(replace(SOUND, **changes)):
        assert finding.remedy in printed
