"""Shares at rest: what was written comes back or is refused, in every place where a process may stop."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from caps.errors import DomainError, LocalError
from services.mpc_server.storage.shares import KEY_BYTES, ShareStore, Vault, decrypt, encrypt, new_key

ONE, TWO = "1" * 64, "2" * 64
SECRET = b"a share that nobody should read" * 40


class Killed(BaseException):
    """The process ends here: nothing that follows happens."""


class Trap:
    """Kills at the n-th durable operation."""

    def __init__(self, at=None):
        self.at, self.seen = at, []

    def __call__(self, name):
        self.seen.append(name)
        if self.at is not None and len(self.seen) > self.at:
            raise Killed(name)


@pytest.fixture
def vault(tmp_path):
    return Vault(tmp_path)


@pytest.fixture
def store(tmp_path, vault):
    return ShareStore(tmp_path / "shares", vault)


def files(tmp_path):
    return sorted(path for path in (tmp_path / "shares").rglob("*") if path.is_file())


def test_the_storage_key_is_made_once_and_for_its_owner_only(tmp_path):
    wrapped = Vault(tmp_path).wrap("thing", b"key")
    path = tmp_path / "storage-key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == KEY_BYTES
    assert os.listdir(tmp_path) == ["storage-key"]
    assert Vault(tmp_path).unwrap("thing", wrapped) == b"key"


def test_processes_that_start_together_have_one_storage_key(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        wrapped = list(pool.map(lambda _: Vault(tmp_path).wrap("thing", b"key"), range(64)))
    assert {Vault(tmp_path).unwrap("thing", one) for one in wrapped} == {b"key"}


def test_no_second_name_of_the_storage_key_stays(tmp_path):
    Vault(tmp_path)
    os.link(tmp_path / "storage-key", tmp_path / ".storage-key.0123abcd")
    Vault(tmp_path)
    assert os.listdir(tmp_path) == ["storage-key"]


def test_a_damaged_storage_key_is_refused(tmp_path):
    (tmp_path / "storage-key").write_bytes(bytes(31))
    with pytest.raises(LocalError, match="storage-key"):
        Vault(tmp_path)


def test_a_key_is_unwrapped_only_for_what_it_was_wrapped_for_and_only_here(vault, tmp_path):
    key = new_key()
    wrapped = vault.wrap("study/1", key)
    assert key not in wrapped
    assert vault.unwrap("study/1", wrapped) == key
    (tmp_path / "elsewhere").mkdir()
    for attempt in (
        lambda: vault.unwrap("study/2", wrapped),
        lambda: Vault(tmp_path / "elsewhere").unwrap("study/1", wrapped),
    ):
        with pytest.raises(LocalError):
            attempt()


def test_every_changed_or_missing_byte_is_noticed():
    key = new_key()
    sealed = encrypt(key, "thing", b"content")
    assert sealed != encrypt(key, "thing", b"content")
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(LocalError, match="thing"):
            decrypt(key, "thing", bytes(changed))
        with pytest.raises(LocalError, match="thing"):
            decrypt(key, "thing", sealed[:position])


def test_a_chunk_comes_back_and_is_not_readable_on_disk(store, tmp_path):
    key = new_key()
    checksum = store.put_chunk(ONE, 3, key, SECRET)
    assert store.get_chunk(ONE, 3, key, checksum) == SECRET
    (path,) = files(tmp_path)
    assert SECRET[:16] not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shares").stat().st_mode) == 0o700


def test_a_damaged_chunk_is_named(store, tmp_path):
    key = new_key()
    checksum = store.put_chunk(ONE, 3, key, SECRET)
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(LocalError, match=f"contribution {ONE}, chunk 3: altered"):
        store.get_chunk(ONE, 3, key, checksum)
    path.unlink()
    with pytest.raises(LocalError, match=f"contribution {ONE}, chunk 3: missing"):
        store.get_chunk(ONE, 3, key, checksum)


def test_files_cannot_be_exchanged_even_with_their_checksums(store, tmp_path):
    key = new_key()
    sums = {(one, n): store.put_chunk(one, n, key, SECRET + bytes([n])) for one in (ONE, TWO) for n in range(2)}
    place = tmp_path / "shares" / "contributions"
    (place / ONE / "0").write_bytes((place / ONE / "1").read_bytes())
    (place / TWO / "1").write_bytes((place / ONE / "1").read_bytes())
    for contribution, number in ((ONE, 0), (TWO, 1)):
        with pytest.raises(LocalError, match=f"contribution {contribution}, chunk {number}"):
            store.get_chunk(contribution, number, key, sums[ONE, 1])


def test_erased_chunks_are_gone_and_others_stay(store, tmp_path):
    key = new_key()
    for number in range(3):
        store.put_chunk(ONE, number, key, SECRET)
    checksum = store.put_chunk(TWO, 0, key, SECRET)
    store.erase_chunks(ONE)
    store.erase_chunks(ONE)
    assert store.contributions() == [TWO]
    assert store.get_chunk(TWO, 0, key, checksum) == SECRET


def test_blobs_come_back_are_replaced_and_erased_one_by_one_or_together(store, tmp_path):
    key = new_key()
    for name in ("s/r/counts", "s/r/other", "s/q/counts", "t"):
        store.put(name, key, name.encode())
    store.put("t", key, b"new")
    assert store.get("t", key) == b"new"
    store.erase("s/r/counts")
    with pytest.raises(LocalError, match="s/r/counts"):
        store.get("s/r/counts", key)
    assert store.get("s/r/other", key) == b"s/r/other"
    store.erase("s")
    store.erase("s")
    for name in ("s/r/other", "s/q/counts"):
        with pytest.raises(LocalError, match=name):
            store.get(name, key)
    assert store.get("t", key) == b"new"


def test_a_blob_under_another_name_or_key_is_refused(store, tmp_path):
    key = new_key()
    store.put("a", key, SECRET)
    store.put("b", key, SECRET)
    (tmp_path / "shares/blobs/b").write_bytes((tmp_path / "shares/blobs/a").read_bytes())
    for name, other in (("b", key), ("a", new_key())):
        with pytest.raises(LocalError, match=f"blob/{name}"):
            store.get(name, other)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a//b", "a/", "a/../b", ".hidden", "a\0", "a\n", "ä"])
def test_names_that_could_lead_elsewhere_are_refused(store, name):
    for attempt in (
        lambda: store.put(name, new_key(), b""),
        lambda: store.get(name, new_key()),
        lambda: store.erase(name),
        lambda: store.erase_chunks(name),
    ):
        with pytest.raises(DomainError):
            attempt()


def operations(tmp_path, vault):
    trap = Trap()
    work(ShareStore(tmp_path / "shares", vault, before=trap), bytes(32))
    return len(trap.seen)


def work(store, key):
    store.put("s/r/counts", key, b"first")
    store.put("s/r/counts", key, b"second")
    store.erase("s")


def counts_of(store):
    try:
        return store.get("s/r/counts", bytes(32))
    except LocalError as error:
        if "missing" in str(error):
            return None
        raise


def test_stopped_anywhere_a_blob_is_old_new_or_gone_and_the_work_can_be_repeated(tmp_path, vault):
    (tmp_path / "count").mkdir()
    total = operations(tmp_path / "count", vault)
    assert total > 10
    for at in range(total):
        directory = tmp_path / str(at)
        with pytest.raises(Killed):
            work(ShareStore(directory, vault, before=Trap(at)), bytes(32))
        again = ShareStore(directory, vault)
        assert not list((directory / "temporary").iterdir())
        assert counts_of(again) in (None, b"first", b"second")
        work(again, bytes(32))
        assert not list((directory / "blobs").iterdir())


def test_a_full_disk_leaves_nothing_behind(tmp_path, vault):
    def full(name):
        if name.startswith("rename"):
            raise OSError(28, "No space left on device")

    store = ShareStore(tmp_path / "shares", vault, before=full)
    with pytest.raises(OSError, match="No space"):
        store.put("a", new_key(), SECRET)
    assert files(tmp_path) == []


def test_a_guard_lets_one_thread_in_at_a_time_and_forgets(store):
    inside, most = 0, 0
    barrier = threading.Barrier(8)

    def enter(_):
        nonlocal inside, most
        barrier.wait()
        for _ in range(50):
            with store.guard(ONE):
                inside += 1
                os.sched_yield()
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(8)))
    assert most == 1
    assert store._locks == {}
