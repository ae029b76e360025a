"""The configuration, the logs and the resources of a run, as the service shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.service.details_api import MOST_BYTES, log_tail
from adaptive_rec.system.process_use import ProcessMeter


def test_the_configuration_names_what_is_not_the_default(client: Any, run: Any) -> None:
    (run.folder / "config.toml").write_text(
        '[run]\nsteps = 7\n[optimizer]\ndense_options = {momentum = 0.5}\n[old]\nkey = "x"\n'
    )
    keys = {each["key"]: each for each in client.get("/api/v1/config").json()["keys"]}
    assert (keys["run.steps"]["value"], keys["run.steps"]["default"], keys["run.steps"]["changed"]) == (7, 2000, True)
    assert keys["run.steps"]["unit"] == "steps"
    assert "Mini-batches to train on" in keys["run.steps"]["why"]
    assert (keys["run.seed"]["value"], keys["run.seed"]["changed"]) == (None, False)
    assert keys["optimizer.dense_options"]["value"] == {"momentum": 0.5}
    assert (keys["old.key"]["value"], keys["old.key"]["why"]) == ("x", "Not a key of this version.")


def test_the_defaults_are_not_marked(client: Any, run: Any) -> None:
    from adaptive_rec.config.tree import Config, to_toml

    (run.folder / "config.toml").write_text(to_toml(Config()))
    keys = client.get("/api/v1/config").json()["keys"]
    assert [each["key"] for each in keys if each["changed"]] == []
    assert all(each["value"] is not None for each in keys)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), ("= [", "must be TOML"), ("#" * (2 << 20), "at most 1048576 bytes")]
)
def test_a_configuration_that_cannot_be_read_says_so(client: Any, run: Any, content: str | None, words: str) -> None:
    (run.folder / "config.toml").unlink()
    if content is not None:
        (run.folder / "config.toml").write_text(content)
    answer = client.get("/api/v1/config")
    assert answer.status_code == 404
    assert words in answer.json()["detail"]


def test_a_log_is_read_from_its_end_and_then_on(client: Any, run: Any) -> None:
    assert client.get("/api/v1/log").json()["exists"] is False
    file = run.folder / "log.txt"
    file.write_text("one\ntwo\nhal")
    first = client.get("/api/v1/log").json()
    assert (first["lines"], first["start"], first["end"], first["size_bytes"]) == (["one", "two"], 0, 8, 11)
    file.write_text("one\ntwo\nhalf\nd\u202e\n")
    then = client.get(f"/api/v1/log?since={first['end']}")
    assert then.json()["lines"] == ["half", "d\u202e"]
    assert "\\u202e" in then.text, "what cannot be seen is escaped"
    assert client.get(f"/api/v1/log?since={then.json()['end']}").json()["lines"] == []
    file.write_text("anew\n")
    assert client.get(f"/api/v1/log?since={then.json()['end']}").json()["lines"] == ["anew"]
    assert client.get("/api/v1/log?name=../../etc/passwd").status_code == 422


def test_of_a_long_log_the_last_whole_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("".join(f"line {number}\n" for number in range(30_000)))
    page = log_tail(tmp_path, "log.txt", None)
    assert page["lines"][-1] == "line 29999"
    assert page["lines"][0].startswith("line ")
    assert page["start"] > page["size_bytes"] - MOST_BYTES
    (tmp_path / "log.txt").write_bytes(b"x" * (3 * MOST_BYTES))
    assert len(log_tail(tmp_path, "log.txt", None)["lines"][0]) == MOST_BYTES


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "log.txt").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "sidecar.log")
    assert not log_tail(tmp_path, "log.txt", None)["exists"]
    assert not log_tail(tmp_path, "sidecar.log", None)["exists"]


def test_resources_are_those_of_the_process(client: Any, view: Any, finished: Any) -> None:
    view.meter.read(keep=True)
    sum(number * number for number in range(1_500_000))
    view.meter.read(keep=True)
    found = client.get("/api/v1/resources").json()
    assert 0.05 < found["cpu_cores"] < 4
    assert found["resident_bytes"] > 10 << 20
    assert found["cores"] <= len(os.sched_getaffinity(0))
    assert len(found["points"]) == 2
    assert "adaptive_rec_process_resident_memory_bytes" in client.get("/metrics").text
    assert finished.get("/api/v1/resources").status_code == 409


def test_limits_are_the_least_of_the_control_groups_around_a_process(tmp_path: Path) -> None:
    process, group = tmp_path / "proc/7", tmp_path / "cgroup"
    (group / "a/b").mkdir(parents=True)
    process.mkdir(parents=True)
    (process / "cgroup").write_text("0::/a/b\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\n")
    (group / "a/memory.max").write_text("5000\n")
    (group / "a/b/memory.max").write_text("max\n")
    (group / "a/b/cpu.max").write_text("50000 100000\n")
    (group / "a/cpu.max").write_text("max 100000\n")
    meter = ProcessMeter(7, tmp_path / "proc", group)
    assert (meter.limits().memory_bytes, meter.limits().cores) == (5000, 0.5)
    assert meter.read() is None, "a process that has ended"
    (process / "cgroup").write_text("0::/../../etc\n")
    assert meter.limits().memory_bytes == 1000 * 1024
