"""Contributions to an MPC server: refused unless they are what was signed, resumed after any crash, erased for good."""

import shutil
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import event, select

from caps.basics.schemes import SCHEMES
from caps.errors import LocalError
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.shares.sharing import reconstruct
from caps.study import Policy
from caps.trust.exchange import ExchangeKey, public_digest
from caps.wire import (
    Approval,
    Contribution,
    ContributionState,
    Opening,
    Receipt,
    Seal,
    SealRequest,
    Signed,
    inputs_digest,
)
from caps.wire.problems import Kind
from services.mpc_server.intake import contributions as module
from services.mpc_server.intake.contributions import _gaps
from services.mpc_server.storage import tables
from tests.kit.mpc_server import AUTOMATIC, SMALL, Parties, Unchanged, content_digest, dealt, refused
from tests.kit.study import AT, COLUMNS, MIXED, POPULATIONS, SERVERS

SLOTS = 2000
"""Then the vectors of `lab` have three chunks, the last one shorter."""


@pytest.fixture
def federation(tmp_path):
    return Parties(tmp_path, holders=COLUMNS, slots=SLOTS)


@pytest.fixture
def desk(federation):
    found = federation.desk()
    found.propose()
    return found


@pytest.fixture
def lab(federation):
    return dealt(federation, "lab")


def offer(desk, one, **choices):
    return desk.call(choices.pop("who", one.holder), "PUT", one.path, choices.pop("offer", one.offer(desk.name)))


def receipt(desk, one, who=None):
    return desk.call(who or one.holder, "POST", f"{one.path}/receipt")


def withdraw(desk, one, who=None):
    return desk.call(who or one.holder, "DELETE", one.path)


def state(desk, one):
    return ContributionState.model_validate(desk.call(one.holder, "GET", one.path).json())


def seal(desk, dealt_ones):
    """Directly in the database: `test_studies` is about sealing."""
    ids = tuple(one.id for one in dealt_ones)
    study = desk.federation.study
    document = Seal(study=study, server=desk.name, inputs=inputs_digest(study, ids), contributions=ids, at=AT)
    signed = Signed[Seal].by(document, desk.name, desk.site.signing_key)
    with desk.database.begin() as connection:
        connection.execute(tables.studies.update().values(state="sealed", seal=signed.model_dump_json()))


@pytest.mark.parametrize(("mine", "demanded"), [("rep3", "rep4"), ("rep4", "rep3")])
def test_a_contribution_in_the_shape_of_another_scheme_is_refused(tmp_path, mine, demanded):
    """As a holder would send it that is too old for the study's scheme."""
    federation, other = Parties(tmp_path / "one", scheme=demanded), Parties(tmp_path / "other", scheme=mine)
    desk, holder = federation.desk(), federation.manifest.holders[0].name
    desk.propose()
    wrong = dealt(other, holder)
    document = wrong.signed.document.model_copy(update={"study": federation.study})
    signed = Signed[Contribution].by(document, holder, federation.keys[holder].signing)
    sent = replace(wrong, signed=signed)
    body = refused(desk.call(holder, "PUT", sent.path, sent.offer("S2")), Kind.INVALID)
    components = federation.manifest.sharing.components
    assert body["detail"] == f"a contribution in {demanded} has {components} commitments"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_servers_hold_what_was_shared(tmp_path, scheme):
    federation = Parties(tmp_path, holders=MIXED, slots=SLOTS, scheme=scheme)
    sharing = federation.manifest.sharing
    desks = [federation.desk(name) for name in sharing.server_names]
    for desk in desks:
        desk.propose()
    for holder in federation.manifest.holders:
        one = dealt(federation, holder.name)
        for desk in desks:
            signed = Signed[Receipt].model_validate(desk.contribute(one).json())
            found = signed.verify(federation.manifest.server(desk.name))
            assert (found.contribution, found.holder, found.event, found.at) == (one.id, holder.name, "accepted", AT)
        parts = [desk.contributions.load(one.id) for desk in desks]
        assert np.array_equal(reconstruct(parts, scheme=sharing), one.values)
        assert parts[0][0].dtype == one.values.dtype
    for desk in desks:
        listed = desk.call("coordinator", "GET", "/contributions").json()
        assert [one["holder"] for one in listed] == ["clinic-a", "registry", "lab"]
        assert {one["state"] for one in listed} == {"complete"}


def test_words_of_three_bytes_are_held_whole_where_chunks_end_inside_them(tmp_path):
    """Chunks of 65,537 bytes, two more than whole words: borders lie at every place of a word."""
    federation = Parties(tmp_path, holders=COLUMNS, slots=1 << 16)
    one = dealt(federation, "lab", chunk_bytes=(1 << 16) + 1)
    assert one.signed.document.bits == 24
    assert one.signed.document.chunks == -(-3 * 7 * (1 << 16) // ((1 << 16) + 1))
    desks = [federation.desk(name) for name in SERVERS]
    for desk in desks:
        desk.propose()
        assert desk.contribute(one).status_code == 200
    parts = [desk.contributions.load(one.id) for desk in desks]
    assert {words.dtype for pair in parts for words in pair} == {np.dtype("<u4")}
    assert all(words.max() < 1 << 24 for pair in parts for words in pair)
    assert np.array_equal(reconstruct(parts) & 0xFF_FFFF, one.values)


def test_a_vector_with_a_chunk_too_few_is_not_loaded(desk, lab):
    desk.contribute(lab)
    with desk.database.begin() as connection:
        connection.execute(tables.chunks.delete().where(tables.chunks.c.number == 2))
    with pytest.raises(LocalError, match=f"contribution {lab.id}: .* has 28000 bytes, not"):
        desk.contributions.load(lab.id)


def test_an_upload_says_what_it_needs_and_may_be_repeated(desk, lab):
    first = offer(desk, lab)
    assert first.status_code == 201
    assert first.headers["location"].endswith(lab.path)
    assert first.json()["missing"] == [[0, 2]]
    assert desk.put_chunk(lab, 1).status_code == 204
    with Unchanged(desk):
        assert desk.put_chunk(lab, 1).status_code == 204
        again = offer(desk, lab)
    assert (again.status_code, again.json()["missing"]) == (200, [[0, 0], [2, 2]])
    for number in (0, 2):
        desk.put_chunk(lab, number)
    assert state(desk, lab).missing == ()
    signed = receipt(desk, lab).json()
    with Unchanged(desk):
        assert receipt(desk, lab).json() == signed
        assert desk.put_chunk(lab, 2).status_code == 204
        assert offer(desk, lab).json()["receipt"] == signed
    assert desk.call("coordinator", "GET", lab.path).json()["state"] == "complete"


def test_nothing_secret_rests_in_the_clear(desk, lab):
    desk.contribute(lab)
    content = b"".join(path.read_bytes() for path in (desk.home / "state").rglob("*") if path.is_file())
    for secret in [bytes.fromhex(one) for one in lab.secrets if one]:
        assert secret not in content
        assert secret.hex().encode() not in content
    assert lab.vector()[:64] not in content
    assert lab.vector()[SMALL : SMALL + 64] not in content


def test_the_first_server_needs_no_chunks(federation, lab):
    desk = federation.desk("S1")
    desk.propose()
    assert offer(desk, lab).json()["missing"] == []
    with Unchanged(desk):
        refused(desk.put_chunk(lab, 0), Kind.NOT_FOUND, lab)
    assert receipt(desk, lab).status_code == 200


@pytest.mark.parametrize("who", ["registry", "coordinator", "S1", "impostor", None, Scope.OPERATOR])
@pytest.mark.parametrize("path", ["", "/chunks/0", "/chunks/%2B0", "/chunks/0%0A", "/chunks/00000000", "/chunks/x"])
def test_of_others_no_byte_is_read(federation, desk, lab, who, path):
    offer(desk, lab)
    read = []

    async def body():
        read.append(True)
        yield b"{}"

    whom = federation.certificate("lab", impostor=True) if who == "impostor" else who
    response = desk.call(whom, "PUT", lab.path + path, content=body(), headers={"Content-Type": "application/json"})
    if who == "registry" and path not in {"/chunks/0"}:  # a party of the study, but these are not its contribution
        assert response.status_code in (400, 403, 422)
    else:
        refused(response, Kind.UNAUTHENTICATED if who is None else Kind.FORBIDDEN, lab)
        assert read == []


@pytest.mark.parametrize("who", ["registry", "coordinator", "S1", "impostor", None, Scope.OWNER])
def test_only_the_holder_itself_may_contribute(federation, desk, lab, who):
    whom = federation.certificate("lab", impostor=True) if who == "impostor" else who
    kind = Kind.UNAUTHENTICATED if who is None else Kind.FORBIDDEN
    with Unchanged(desk):
        refused(desk.call(whom, "PUT", lab.path, lab.offer("S2")), kind, lab)
    offer(desk, lab)
    with Unchanged(desk):
        refused(desk.call(whom, "POST", f"{lab.path}/receipt"), kind, lab)
        refused(desk.call(whom, "DELETE", lab.path), kind, lab)
        refused(desk.put_chunk(lab, 0, who=whom) if whom else desk.call(None, "PUT", f"{lab.path}/chunks/0"), kind, lab)
        if who != "coordinator":
            refused(desk.call(whom, "GET", lab.path), kind, lab)


def test_complete_contributions_are_not_listed_for_holders(desk):
    for who in ("lab", "S1", Scope.ANALYST):
        refused(desk.call(who, "GET", "/contributions"), Kind.FORBIDDEN)
    for who in ("coordinator", Scope.OPERATOR, Scope.AUDITOR):
        assert desk.call(who, "GET", "/contributions").json() == []


def test_a_contribution_must_be_signed_by_its_holder(federation, desk, lab):
    given = lab.offer("S2")
    with Unchanged(desk):
        for changes in ({"signature": "0" * 128}, {"signer": "registry"}):
            changed = given.model_copy(update={"contribution": lab.signed.model_copy(update=changes)})
            refused(offer(desk, lab, offer=changed), Kind.SIGNATURE_REFUSED, lab)
        other = Signed[Contribution].by(lab.signed.document, "lab", federation.keys["registry"].signing)
        refused(offer(desk, lab, offer=given.model_copy(update={"contribution": other})), Kind.SIGNATURE_REFUSED, lab)


@pytest.mark.parametrize(
    "changes",
    [
        {"study": "0" * 64},
        {"form": "marginals"},
        {"bits": 32},
        {"shape": (SLOTS, 6)},
        {"shape": (SLOTS - 1, 7)},
        {"shape": (SLOTS * 7,)},
        {"commitments": ("0" * 64,) * 3},
    ],
)
def test_a_contribution_must_be_what_the_study_expects(federation, desk, changes):
    one = dealt(federation, "lab", **changes)
    with Unchanged(desk):
        refused(offer(desk, one), Kind.INVALID, one)


def test_a_contribution_has_its_own_address_and_a_holder_of_the_study(federation, desk, lab):
    with Unchanged(desk):
        response = desk.call("lab", "PUT", f"/contributions/{'0' * 64}", lab.offer("S2"))
        refused(response, Kind.INVALID, lab)
        stranger = lab.signed.model_copy(update={"document": lab.signed.document.model_copy(update={"holder": "x"})})
        changed = lab.offer("S2").model_copy(update={"contribution": stranger})
        refused(offer(desk, lab, offer=changed), Kind.INVALID, lab)
        unknown = f"/contributions/{'0' * 64}"
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/receipt")):
            refused(desk.call("lab", method, unknown + path), Kind.NOT_FOUND)
        headers = content_digest(b"")
        refused(desk.call("lab", "PUT", f"{unknown}/chunks/0", content=b"", headers=headers), Kind.NOT_FOUND)


def test_openings_are_those_of_this_server_and_open_the_commitments(federation, desk, lab):
    first, second = lab.opening(1), lab.opening(2)
    cases = [
        (lab.opening(0), first),
        (second, lab.opening(0)),
        (first, first),
        (first.model_copy(update={"seed": None}), second),
        (first, second.model_copy(update={"seed": "1" * 64})),
        (first.model_copy(update={"seed": "1" * 64}), second),
        (first.model_copy(update={"nonce": "1" * 64}), second),
        (Opening(component=1, nonce=lab.nonces[0], seed=lab.opening(0).seed), second),
    ]
    with Unchanged(desk):
        for openings in cases:
            changed = lab.offer("S2").model_copy(update={"openings": openings})
            refused(offer(desk, lab, offer=changed), Kind.INVALID, lab)
        broken = lab.offer("S2").to_json()
        broken["openings"][0]["nonce"] = "not hexadecimal " + lab.nonces[0]
        refused(desk.call("lab", "PUT", lab.path, broken), Kind.INVALID, lab)
    swapped = lab.offer("S2").model_copy(update={"openings": (second, first)})
    assert offer(desk, lab, offer=swapped).status_code == 201


def test_a_holder_has_one_contribution_until_it_is_withdrawn(federation, desk, lab):
    other = dealt(federation, "lab")
    offer(desk, lab)
    with Unchanged(desk):
        document = refused(offer(desk, other), Kind.CONFLICT, lab, other)
    assert document["contribution"] == lab.id
    desk.contribute(lab)
    with Unchanged(desk):
        refused(offer(desk, other), Kind.CONFLICT, lab, other)
    withdraw(desk, lab)
    assert desk.contribute(other).status_code == 200
    assert offer(desk, lab).json()["state"] == "withdrawn"


def test_contributions_wait_for_the_approval(federation, lab):
    desk = federation.desk(policy=Policy(populations=POPULATIONS, approval="manual"))
    desk.propose()
    with Unchanged(desk):
        refused(offer(desk, lab), Kind.NOT_READY, lab)


def test_nothing_is_taken_once_sealed_or_erased_and_what_is_sealed_stays(federation, desk, lab):
    registry, complete = dealt(federation, "registry"), lab
    desk.contribute(complete)
    offer(desk, registry)
    desk.put_chunk(registry, 0)
    for change in (seal, lambda *_: desk.studies.erase(federation.study)):
        change(desk, [lab])
        with Unchanged(desk):
            refused(offer(desk, dealt(federation, "lab")), Kind.CONFLICT)
            refused(desk.put_chunk(registry, 1), Kind.CONFLICT, registry)
            refused(receipt(desk, registry), Kind.CONFLICT, registry)
            assert offer(desk, complete).status_code == 200
            if change is seal:
                refused(withdraw(desk, complete), Kind.CONFLICT, complete)
            else:  # nothing is left of either, and the receipts say so
                found = [withdraw(desk, one).json()["document"] for one in (registry, complete)]
                assert [(one["holder"], one["event"]) for one in found] == [("registry", "erased"), ("lab", "erased")]


def test_a_holder_contributes_so_often_and_no_more(federation):
    desk = federation.desk(policy=AUTOMATIC.model_copy(update={"most_contributions": 2}))
    desk.propose()
    for _ in range(2):
        one = dealt(federation, "lab")
        assert offer(desk, one).status_code == 201
        assert offer(desk, one).status_code == 200  # the same again is not another
        withdraw(desk, one)
    with Unchanged(desk):
        document = refused(offer(desk, dealt(federation, "lab")), Kind.POLICY_REFUSED)
    assert "most_contributions" in document["detail"]
    assert offer(desk, dealt(federation, "registry")).status_code == 201


def test_an_upload_of_countless_files_is_refused(desk, lab, monkeypatch):
    monkeypatch.setattr(module, "MOST_CHUNKS", 2)
    with Unchanged(desk):
        refused(offer(desk, lab), Kind.INVALID, lab)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "sha-256",
        "sha-256=",
        "sha-256=:",
        "sha-256=::",
        "sha-256=:AAAA:",
        "sha-256=:!:",
        "sha-512=:AAAA:",
        "md5=:AAAA:",
        "twice",
    ],
)
def test_a_chunk_needs_a_digest(desk, lab, value):
    offer(desk, lab)
    given = content_digest(lab.chunk(0))["Content-Digest"]
    headers = {} if value is None else {"Content-Digest": f"{given}, {given}" if value == "twice" else value}
    with Unchanged(desk):
        refused(desk.put_chunk(lab, 0, headers=headers), Kind.MALFORMED, lab)


def test_a_digest_may_stand_among_others(desk, lab):
    offer(desk, lab)
    value = "sha-512=:AAAA:, " + content_digest(lab.chunk(0))["Content-Digest"]
    assert desk.put_chunk(lab, 0, headers={"Content-Digest": value}).status_code == 204


def test_a_chunk_must_match_its_digest_length_and_number(desk, lab):
    offer(desk, lab)
    whole, last = lab.chunk(0), lab.chunk(2)
    with Unchanged(desk):
        refused(desk.put_chunk(lab, 0, whole, headers=content_digest(lab.chunk(1))), Kind.INVALID, lab)
        refused(desk.put_chunk(lab, 0, whole[:-1]), Kind.INVALID, lab)
        refused(desk.put_chunk(lab, 0, b""), Kind.INVALID, lab)
        refused(desk.put_chunk(lab, 0, whole + b"x"), Kind.TOO_LARGE, lab)
        refused(desk.put_chunk(lab, 2, last + b"x"), Kind.TOO_LARGE, lab)
        refused(desk.put_chunk(lab, 3, whole), Kind.NOT_FOUND, lab)
        refused(desk.call("lab", "PUT", f"{lab.path}/chunks/-1", headers=content_digest(b"")), Kind.INVALID, lab)
        refused(desk.call("lab", "PUT", f"{lab.path}/chunks/x", headers=content_digest(b"")), Kind.INVALID, lab)
    assert desk.put_chunk(lab, 2).status_code == 204


def test_other_bytes_for_a_chunk_are_refused(desk, lab):
    offer(desk, lab)
    desk.put_chunk(lab, 0)
    with Unchanged(desk):
        refused(desk.put_chunk(lab, 0, bytes(SMALL)), Kind.CONFLICT, lab)


def test_a_receipt_needs_every_chunk(desk, lab):
    offer(desk, lab)
    desk.put_chunk(lab, 1)
    with Unchanged(desk):
        assert refused(receipt(desk, lab), Kind.NOT_READY, lab)["missing"] == [[0, 0], [2, 2]]
    with pytest.raises(LocalError, match="offered"):
        desk.contributions.load(lab.id)


def test_a_vector_that_was_not_committed_to_gets_no_receipt(desk, lab):
    offer(desk, lab)
    for number in range(3):
        desk.put_chunk(lab, number, bytes(len(lab.chunk(number))) if number == 1 else None)
    with Unchanged(desk):
        refused(receipt(desk, lab), Kind.INVALID, lab)
    assert withdraw(desk, lab).status_code == 200


def test_a_chunk_damaged_on_disk_is_named_and_can_be_sent_again(desk, lab):
    offer(desk, lab)
    for number in range(3):
        desk.put_chunk(lab, number)
    path = desk.home / "state" / "shares" / "contributions" / lab.id / "1"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with Unchanged(desk):
        document = refused(receipt(desk, lab), Kind.CONFLICT, lab)
    assert document["detail"] == f"contribution {lab.id}, chunk 1: altered on disk"
    assert desk.put_chunk(lab, 1).status_code == 204
    assert receipt(desk, lab).status_code == 200
    path.unlink()
    with pytest.raises(LocalError, match=f"{lab.id}, chunk 1: missing"):
        desk.contributions.load(lab.id)


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed without it"])
@pytest.mark.parametrize("sent", ["offer", "chunk", "everything"])
def test_a_withdrawn_contribution_is_gone_with_its_key(federation, desk, lab, sent, sealed):
    """At any time, whatever has arrived of it: its key is nowhere on the disk, and no file is left."""
    offer(desk, lab)
    if sent != "offer":
        desk.put_chunk(lab, 0)
    if sent == "everything":
        desk.contribute(lab)
    if sealed:
        seal(desk, [dealt(federation, "registry")])
    with desk.database.begin() as connection:
        wrapped = connection.execute(select(tables.contributions.c.wrapped_key)).scalar_one()
    response = withdraw(desk, lab)
    assert response.status_code == 200
    found = Signed[Receipt].model_validate(response.json()).verify(federation.manifest.server("S2"))
    assert (found.contribution, found.event) == (lab.id, "withdrawn")
    assert desk.store.contributions() == []
    assert not any(wrapped in path.read_bytes() for path in (desk.home / "state").rglob("*") if path.is_file())
    with pytest.raises(LocalError, match="withdrawn"):
        desk.contributions.load(lab.id)
    federation.clock.now += timedelta(hours=1)
    with Unchanged(desk):
        assert withdraw(desk, lab).json() == response.json()
        refused(desk.put_chunk(lab, 1), Kind.CONFLICT, lab)
        refused(receipt(desk, lab), Kind.CONFLICT, lab)
    assert state(desk, lab).receipt == Signed[Receipt].model_validate(response.json())


def test_load_knows_only_what_is_here(desk):
    with pytest.raises(LocalError, match="unknown"):
        desk.contributions.load("0" * 64)


def test_gaps():
    assert _gaps([], 3) == ((0, 2),)
    assert _gaps([2, 0], 3) == ((1, 1),)
    assert _gaps([1, 4], 6) == ((0, 0), (2, 3), (5, 5))
    assert _gaps([0, 1], 2) == ()
    assert _gaps([], 0) == ()


class Killed(BaseException):
    """The process ends here: nothing that follows happens."""


class Trap:
    """Kills before the n-th durable operation: one on files, or the commit of a transaction that wrote."""

    def __init__(self, at=None):
        self.at, self.seen, self.wrote = at, 0, False

    def watch(self, database):
        event.listen(database, "begin", self.begin)
        event.listen(database, "before_cursor_execute", self.execute)
        event.listen(database, "commit", self.commit)

    def begin(self, _):
        self.wrote = False

    def execute(self, connection, cursor, statement, *_):
        self.wrote = self.wrote or statement.startswith(("INSERT", "UPDATE", "DELETE"))

    def commit(self, _):
        if self.wrote:
            self("commit")

    def __call__(self, _):
        self.seen += 1
        if self.at is not None and self.seen > self.at:
            raise Killed


class Story:
    """A study from proposal to erasure, as clients that repeat what was interrupted go through it."""

    def __init__(self, federation):
        self.federation = federation
        self.first, self.second = dealt(federation, "lab"), dealt(federation, "lab")
        self.registry = dealt(federation, "registry")
        self.others = [
            Signed[Approval].by(
                Approval(
                    study=federation.study,
                    role="mpc-server",
                    exchange_digest=public_digest(ExchangeKey.generate().public),
                    at=AT,
                ),
                name,
                federation.keys[name].signing,
            )
            for name in ("S1", "S3")
        ]

    def go(self, desk, said):
        """`said` is every document that was signed on the way; what was said once must not change."""

        def note(what, document):
            assert said.setdefault(what, document) == document

        federation, study = self.federation, self.federation.study
        coordinator = federation.caller("coordinator")
        approval = desk.studies.receive(study, federation.manifest, coordinator)[0].approval
        note("approval", approval)
        note("first", self.contribute(desk, self.first))
        if desk.studies.status(study).state == "approved":
            note("withdrawn", desk.contributions.withdraw(study, self.first.id, federation.caller("lab")))
        note("second", self.contribute(desk, self.second))
        note("registry", self.contribute(desk, self.registry))
        if desk.studies.status(study).state != "erased":
            request = SealRequest(
                contributions=(self.second.id, self.registry.id),
                approvals=(approval, *self.others, *map(federation.approval, ("lab", "registry"))),
            )
            note("seal", desk.studies.seal(study, request, coordinator))
            desk.store.put(f"{study}/run/counts", desk.studies.data_key(study), b"counts")
        note("erased", desk.studies.erase(study))

    def contribute(self, desk, one):
        study, caller = self.federation.study, self.federation.caller(one.holder)
        found, _ = desk.contributions.offer(study, one.id, one.offer("S2"), caller)
        if found.state == "offered":
            for first, last in found.missing:
                for number in range(first, last + 1):
                    desk.contributions.put_chunk(study, one.id, number, one.chunk(number), caller)
            return desk.contributions.receipt(study, one.id, caller)
        return found.receipt if found.state == "complete" else self.accepted(one)

    def accepted(self, one):
        """The receipt of what is gone by now; nobody has it but who was given it."""
        document = Receipt(
            study=self.federation.study,
            contribution=one.id,
            holder=one.holder,
            server="S2",
            event="accepted",
            at=AT,
        )
        return Signed[Receipt].by(document, "S2", self.federation.keys["S2"].signing)


def consistent(desk, story):
    """What holds at every moment: what the database counts as here can be read, and is right."""
    parts = {one.id: one for one in (story.first, story.second, story.registry)}
    with desk.database.begin() as connection:
        rows = connection.execute(select(tables.contributions)).all()
        chunks = connection.execute(select(tables.chunks)).all()
    for row in rows:
        if row.state == "complete":
            assert row.receipt is not None
            mine, other = desk.contributions.load(row.contribution)
            assert np.array_equal(mine, parts[row.contribution].shares[1].components()[0])
            assert other.tobytes() == parts[row.contribution].vector()
        assert (row.wrapped_key is None) == (row.openings is None) == (row.state in ("withdrawn", "erased"))
    keys = {row.contribution: desk.contributions._key(row) for row in rows if row.wrapped_key is not None}
    for contribution, number, checksum in chunks:
        content = desk.store.get_chunk(contribution, number, keys[contribution], checksum)
        assert content == parts[contribution].chunk(number)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("part", range(4))
def test_killed_before_any_durable_operation_the_study_goes_on(tmp_path, part):
    federation = Parties(tmp_path / "template", holders=COLUMNS, slots=SLOTS)
    story = Story(federation)

    def start(name, trap):
        federation.folder = tmp_path / name
        if not federation.folder.exists():
            shutil.copytree(tmp_path / "template", federation.folder)
        desk = federation.desk("S2", before=trap)
        trap.watch(desk.database)
        return desk

    def states(desk):
        with desk.database.begin() as connection:
            return {
                **dict(
                    connection.execute(select(tables.contributions.c.contribution, tables.contributions.c.state)).all()
                ),
                **dict(connection.execute(select(tables.studies.c.study, tables.studies.c.state)).all()),
            }

    trap = Trap()
    smooth = start("smooth", trap)
    story.go(smooth, {})
    total, expected = trap.seen, states(smooth)
    assert sorted(expected.values()) == ["erased", "erased", "erased", "withdrawn"]
    assert total > 40
    for at in range(part, total, 4):
        said = {}
        desk = start(str(at), Trap(at))
        with pytest.raises(Killed):
            story.go(desk, said)
        desk.database.dispose()
        again = start(str(at), Trap())
        consistent(again, story)
        story.go(again, said)
        again.studies.sweep(federation.clock.now)
        assert states(again) == expected
        assert not [path for path in (again.home / "state" / "shares").rglob("*") if path.is_file()]
        again.database.dispose()


def test_what_a_crash_kept_from_being_unlinked_is_swept(federation, lab):
    def stop(name):
        if name.startswith("unlink"):
            raise Killed

    desk = federation.desk(before=stop)
    desk.propose()
    desk.contribute(lab)
    with pytest.raises(Killed):
        desk.contributions.withdraw(federation.study, lab.id, federation.caller("lab"))
    assert desk.store.contributions() == [lab.id]
    again = federation.desk()
    assert again.studies.sweep(federation.clock.now) == []
    assert again.store.contributions() == []


def test_a_chunk_cannot_slip_in_while_its_contribution_is_withdrawn(federation, lab):
    """The withdrawal comes when the chunk is already encrypted: it must wait, and then erase the chunk as well."""
    from threading import Thread

    threads = []

    def meanwhile(name):
        if name.startswith("rename") and not threads:
            threads.append(Thread(target=withdrawing))
            threads[0].start()
            threads[0].join(0.3)
            assert threads[0].is_alive()

    def withdrawing():
        desk.contributions.withdraw(federation.study, lab.id, federation.caller("lab"))

    desk = federation.desk(before=meanwhile)
    desk.propose()
    offer(desk, lab)
    caller = federation.caller("lab")
    desk.contributions.put_chunk(federation.study, lab.id, 0, lab.chunk(0), caller)
    threads[0].join()
    assert desk.store.contributions() == []
    with desk.database.begin() as connection:
        assert connection.execute(select(tables.chunks)).all() == []
    with pytest.raises(Problem):
        desk.contributions.put_chunk(federation.study, lab.id, 1, lab.chunk(1), caller)
