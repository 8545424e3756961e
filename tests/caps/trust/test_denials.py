"""Denied keys: a list that follows its file, survives a broken one, and is extended without touching the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from caps.errors import DomainError
from caps.study import Policy
from caps.study.policy import policy_yaml
from caps.trust.denials import Denial, Denials, read_denials, revoke

A, B = "a" * 64, "b" * 64
AT = "2026-11-17T09:00:00Z"


def written(path: Path, text: str) -> None:
    """A file with another stamp than before, however fast the clock ticks."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_the_list_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    denials = Denials(path)
    assert not denials.denies(A)
    assert denials.complaint is None
    written(path, f"denied:\n- pin: {A}\n  reason: lost\n")
    assert denials.denies(A)
    assert not denials.denies(B)
    written(path, f"denied: [{{pin: {B}, since: 2026-11-17T10:00:00+01:00}}]\n")
    assert denials.current() == {B: Denial(pin=B, since=AT)}
    written(path, "denied: []\n")
    assert not denials.denies(B)


BROKEN = {
    "not YAML": "denied: [",
    "no members": "- denied",
    "no list": "denied: all",
    "no pin": "denied: [{reason: lost}]",
    "a short pin": "denied: [{pin: abc}]",
    "an unknown member": f"denied: [{{pin: {A}, who: S1}}]",
    "a control character": f'denied: [{{pin: {A}, reason: "\\x1b"}}]',
    "not UTF-8": "denied: \udcff",
    "something else": "denyed: []",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_keeps_the_last_good_list_and_says_so(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.yaml"
    denials = Denials(path, alone=True)
    written(path, f"denied: [{{pin: {A}}}]\n")
    assert denials.denies(A)
    path.write_bytes(text.encode(errors="surrogateescape"))
    os.utime(path, ns=(0, 0))
    assert denials.denies(A)
    assert str(path) in (denials.complaint or "")
    assert "the last list stays in force" in caplog.text
    written(path, f"denied: [{{pin: {B}}}]\n")
    assert not denials.denies(A)
    assert denials.complaint is None
    path.unlink()
    assert denials.denies(B)
    assert "gone" in (denials.complaint or "")


def test_a_servers_policy_may_say_other_things(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"approval: manual\ndenied: [{{pin: {A}}}]\n")
    assert Denials(path).denies(A)
    assert Policy.read(path).denied == (Denial(pin=A),)
    with pytest.raises(DomainError, match="approval: only `denied` is read here"):
        read_denials(path, alone=True)


STYLES = {
    "nothing": "",
    "a template with remarks": policy_yaml(),
    "no newline at the end": "approval: manual",
    "an empty list": "denied: []  # nobody yet\napproval: manual\n",
    "an empty member": "denied:\napproval: manual\n",
    "a list": f"denied:\n  # lost\n  - {{pin: {B}}}\napproval: manual\n",
    "a list without indent": f"approval: manual\ndenied:\n- pin: {B}\n  reason: lost\n",
}


@pytest.mark.parametrize("text", STYLES.values(), ids=STYLES)
def test_a_key_is_added_once_and_the_rest_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    if text:
        path.write_text(text)
        path.chmod(0o640)
    before = read_denials(path) if text else []
    assert revoke(path, A, since=AT, reason='he said: "lost" # or stolen')
    assert set(read_denials(path)) == {*before, Denial(pin=A, since=AT, reason='he said: "lost" # or stolen')}
    once = path.read_text()
    assert not revoke(path, A, since="2027-01-01T00:00:00Z", reason="again")
    assert path.read_text() == once
    assert path.stat().st_mode & 0o777 == (0o640 if text else 0o600)
    kept = [line for line in text.splitlines() if not line.startswith("denied")]
    assert [line for line in once.splitlines() if line in kept] == kept
    rest = {name: value for name, value in (yaml.safe_load(text or "{}") or {}).items() if name != "denied"}
    assert {name: value for name, value in yaml.safe_load(once).items() if name != "denied"} == rest


UNCLEAR = [text for name, text in BROKEN.items() if name != "something else"]


@pytest.mark.parametrize("text", [f"denied: [{{pin: {B}}}]\n", '"denied":\n- pin: x\n', *UNCLEAR])
def test_what_cannot_be_extended_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DomainError, match=r"policy\.yaml"):
        revoke(path, A, since=AT, reason=None)
    assert path.read_bytes() == text.encode(errors="surrogateescape")


@pytest.mark.parametrize(("pin", "reason"), [("A" * 64, None), ("a" * 63, None), (A, "a\nb"), (A, "\u202e")])
def test_what_is_no_denial(tmp_path: Path, pin: str, reason: str | None) -> None:
    with pytest.raises(DomainError):
        revoke(tmp_path / "policy.yaml", pin, since=AT, reason=reason)
    assert list(tmp_path.iterdir()) == []
