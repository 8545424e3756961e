"""Studies on an MPC server: who may propose, what its policy decides, sealing, retention and erasure."""

from datetime import timedelta

import pytest
from sqlalchemy import insert

from caps.basics.schemes import SCHEMES
from caps.errors import LocalError
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.study import Manifest, Policy
from caps.trust.denials import revoke
from caps.trust.exchange import ExchangeKey, public_digest
from caps.wire import Approval, Decline, Receipt, Seal, Signed, inputs_digest
from caps.wire.problems import Kind
from services.mpc_server.storage import tables
from tests.kit.mpc_server import Parties, Sealable, Unchanged, dealt, refused, wrapped_keys
from tests.kit.study import AT, COLUMNS, MIXED, NOW, POPULATIONS, SERVERS

MANUAL = Policy(populations=POPULATIONS, approval="manual")
RUN = "ab" * 16


@pytest.fixture
def federation(tmp_path):
    return Parties(tmp_path)


@pytest.fixture
def desk(federation):
    return federation.desk()


def test_a_study_within_the_policy_is_approved_at_once(federation, desk):
    response = desk.propose()
    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/studies/{federation.study}"
    signed = Signed[Approval].model_validate(response.json())
    approval = signed.verify(federation.manifest.server("S2"))
    assert (approval.study, approval.role, approval.at) == (federation.study, "mpc-server", AT)
    assert public_digest(desk.studies.exchange_key(federation.study).public) == approval.exchange_digest
    status = desk.call("coordinator", "GET")
    assert status.json()["state"] == "approved"
    assert status.json()["approval"] == response.json()


def test_proposing_again_returns_the_same_approval_even_under_a_stricter_policy(federation, desk):
    first = desk.propose()
    strict = federation.desk(policy=Policy(populations=POPULATIONS, approval="automatic", largest_epsilon=0.001))
    with Unchanged(desk):
        again = strict.propose()
    assert (again.status_code, again.json()) == (200, first.json())


def test_each_server_and_study_has_keys_of_its_own(federation, desk):
    desk.propose()
    other = federation.desk("S3")
    other.propose()
    pairs = [one.studies.exchange_key(federation.study) for one in (desk, other)]
    keys = {key.curve.private_bytes_raw() for key in pairs} | {key.lattice.private_bytes_raw() for key in pairs}
    keys |= {one.studies.data_key(federation.study) for one in (desk, other)}
    assert len(keys) == 6
    raw = (desk.home / "state" / "state.db").read_bytes() + (desk.home / "state" / "state.db-wal").read_bytes()
    assert not any(key in raw for key in keys)


def test_a_manual_policy_waits_for_the_operator(federation):
    desk = federation.desk(policy=MANUAL)
    for _ in range(2):
        response = desk.propose()
        assert response.status_code == 202
        assert response.headers["location"] == f"/v1/studies/{federation.study}"
        assert response.json()["state"] == "judged"
    with pytest.raises(LocalError, match="do not exist yet"):
        desk.studies.exchange_key(federation.study)
    first = desk.call(Scope.OPERATOR, "POST", "/approval")
    assert first.status_code == 200
    Signed[Approval].model_validate(first.json()).verify(federation.manifest.server("S2"))
    with Unchanged(desk):
        assert desk.call(Scope.OPERATOR, "POST", "/approval").json() == first.json()
        assert desk.propose().json() == first.json()


def test_an_operator_declines_and_thinks_better_of_it(federation):
    desk = federation.desk(policy=MANUAL)
    desk.propose()
    for reason in ("", "x" * 501, "\x1b[2J"):
        refused(desk.call(Scope.OPERATOR, "POST", "/decline", {"reason": reason}), Kind.INVALID)
    said = Signed[Decline].model_validate(desk.call(Scope.OPERATOR, "POST", "/decline", {"reason": "No."}).json())
    found = said.verify(federation.manifest.server("S2"))
    assert (found.study, found.role, found.reason) == (federation.study, "mpc-server", "No.")
    automatic = federation.desk(policy=Policy(populations=POPULATIONS, approval="automatic"))
    for here in (desk, automatic):  # a person has said no: no policy overrules that
        assert refused(here.propose(), Kind.POLICY_REFUSED)["decline"] == said.to_json()
    holder = federation.manifest.holders[0].name
    for who, seen in ((Scope.OPERATOR, True), (Scope.AUDITOR, True), ("coordinator", True), (holder, False)):
        state = desk.call(who, "GET").json()
        assert (state["state"], state["decline"] is not None) == ("declined", seen)
    offered = dealt(federation, holder)
    refused(desk.call(holder, "PUT", offered.path, offered.offer("S2")), Kind.NOT_READY)
    assert desk.call(Scope.OPERATOR, "POST", "/approval").status_code == 200
    assert desk.propose().status_code == 200
    state = desk.call(Scope.OPERATOR, "GET").json()
    assert (state["state"], state["decline"]) == ("approved", None)
    with Unchanged(desk):
        refused(desk.call(Scope.OPERATOR, "POST", "/decline", {"reason": "Too late."}), Kind.CONFLICT)


def test_the_operator_cannot_approve_against_the_policy(federation):
    federation.desk(policy=MANUAL).propose()
    desk = federation.desk(policy=Policy(populations=POPULATIONS, approval="manual", largest_epsilon=0.5))
    with Unchanged(desk):
        document = refused(desk.call(Scope.OPERATOR, "POST", "/approval"), Kind.POLICY_REFUSED)
    assert document["objections"] == ["epsilon 1 exceeds this server's limit of 0.5"]


def test_objections_are_all_listed_and_nothing_is_kept(federation):
    desk = federation.desk(
        policy=Policy(populations=POPULATIONS, approval="automatic", largest_epsilon=0.5, least_holders=3)
    )
    with Unchanged(desk):
        document = refused(desk.propose(), Kind.POLICY_REFUSED)
    assert len(document["objections"]) == 2
    refused(desk.call("coordinator", "GET"), Kind.NOT_FOUND)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_that_the_policy_does_not_admit_is_refused_before_anything_is_uploaded(tmp_path, scheme):
    federation = Parties(tmp_path, scheme=scheme)
    others = tuple(name for name in SCHEMES if name != scheme)
    desk = federation.desk(policy=Policy(populations=POPULATIONS, approval="automatic", schemes=others))
    with Unchanged(desk):
        body = refused(desk.propose(), Kind.POLICY_REFUSED)
        offered = dealt(federation, federation.manifest.holders[0].name)
        refused(desk.call(offered.holder, "PUT", offered.path, offered.offer("S2")), Kind.NOT_FOUND)
    said = f"this server does not compute in the scheme {scheme}, only in {' or '.join(others)}"
    assert body["objections"] == [said]


def test_a_study_with_more_servers_than_the_mesh_is_refused(tmp_path):
    federation = Parties(tmp_path, scheme="rep4")
    desk = federation.desk(mesh=3)
    with Unchanged(desk):
        body = refused(desk.propose(), Kind.POLICY_REFUSED)
    said = "rep4 needs 4 servers, but this one is connected with 2 others (CAPS_MESH)"
    assert body["objections"] == [said]


def test_four_servers_serve_a_study_of_three(tmp_path):
    federation = Parties(tmp_path)
    assert federation.desk(mesh=4).propose().status_code == 201


def test_the_servers_of_every_scheme_seal_the_same_inputs(tmp_path):
    for scheme in SCHEMES:
        sealable = Sealable(tmp_path / scheme, scheme=scheme)
        names = sealable.federation.manifest.sharing.server_names
        seals = [Signed[Seal].model_validate(sealable.seal(desk=name).json()) for name in names]
        assert len({seal.document.inputs for seal in seals}) == 1
        assert [seal.signer for seal in seals] == list(names)


@pytest.mark.parametrize(
    ("who", "kind"),
    [
        (None, Kind.UNAUTHENTICATED),
        ("clinic-a", Kind.FORBIDDEN),
        ("S1", Kind.FORBIDDEN),
        (Scope.OPERATOR, Kind.FORBIDDEN),
        ("impostor", Kind.FORBIDDEN),
    ],
)
def test_only_the_coordinator_of_the_manifest_may_propose(federation, desk, who, kind):
    if who == "impostor":
        who = federation.certificate("coordinator", impostor=True)
    with Unchanged(desk):
        refused(desk.call(who, "PUT", "", federation.manifest), kind)


def test_a_manifest_must_be_the_one_of_its_address(federation, desk):
    with Unchanged(desk):
        refused(desk.call("coordinator", "PUT", f"/v1/studies/{'0' * 64}", federation.manifest), Kind.INVALID)


def test_a_manifest_that_gives_this_server_other_keys_is_refused(federation, desk):
    document = federation.manifest.to_json()
    document["servers"][1]["pin"] = "9" * 64
    other = type(federation.manifest).from_json(document)
    with Unchanged(desk):
        answer = refused(desk.call("coordinator", "PUT", f"/v1/studies/{other.study_id}", other), Kind.INVALID)
    assert "S2" in answer["detail"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", Kind.MALFORMED),
        (b"{", Kind.MALFORMED),
        (b"\xff", Kind.MALFORMED),
        (b'{"a":1,"a":2}', Kind.MALFORMED),
        (b"[]", Kind.INVALID),
        (b'{"title":"x"}', Kind.INVALID),
    ],
)
def test_what_is_no_manifest_is_refused(desk, body, kind):
    with Unchanged(desk):
        refused(desk.call("coordinator", "PUT", content=body), kind)


def test_an_inconsistent_manifest_is_refused_with_the_place(federation, desk):
    document = federation.manifest.to_json() | {"retention_days": 0}
    with Unchanged(desk):
        answer = refused(desk.call("coordinator", "PUT", "", document), Kind.INVALID)
    assert [one["place"] for one in answer["errors"]] == ["retention_days"]


def test_studies_are_shown_to_those_with_a_part_in_them(federation, desk):
    desk.propose()
    impostor = federation.certificate("clinic-a", impostor=True)
    for who in ("coordinator", "clinic-a", "clinic-b", Scope.OPERATOR, Scope.AUDITOR):
        assert desk.call(who, "GET").json()["study"] == federation.study
        assert [one["study"] for one in desk.call(who, "GET", "/v1/studies").json()] == [federation.study]
    refused(desk.call(impostor, "GET"), Kind.FORBIDDEN)
    assert desk.call(impostor, "GET", "/v1/studies").json() == []
    for who in ("S1", Scope.ANALYST, Scope.OWNER):
        refused(desk.call(who, "GET"), Kind.FORBIDDEN)
        refused(desk.call(who, "GET", "/v1/studies"), Kind.FORBIDDEN)
    unknown = desk.call("coordinator", "GET", f"/v1/studies/{'0' * 64}")
    refused(unknown, Kind.NOT_FOUND)
    assert unknown.json()["retryable"], "a holder that is ahead of the coordinator asks again"
    refused(desk.call("coordinator", "GET", "/v1/studies/nonsense"), Kind.INVALID)


def test_all_servers_seal_the_same_inputs(tmp_path):
    here = Sealable(tmp_path)
    manifest, study = here.federation.manifest, here.federation.study
    assert here.desks["S1"].studies.sealed(study) is None
    inputs = set()
    for name in SERVERS:
        response = here.seal(["clinic-b", "clinic-a"], desk=name)
        assert response.status_code == 200, response.text
        seal = Signed[Seal].model_validate(response.json()).verify(manifest.server(name))
        assert seal.contributions == (here.dealt["clinic-a"].id, here.dealt["clinic-b"].id)
        inputs.add(seal.inputs)
        sealed = here.desks[name].studies.sealed(study)
        assert sealed.inputs == seal.inputs
        assert [one.holder for one in sealed.contributions] == ["clinic-a", "clinic-b"]
        digests = {other: public_digest(here.desks[other].studies.exchange_key(study).public) for other in SERVERS}
        assert sealed.exchange_digests == digests
    assert inputs == {inputs_digest(study, [one.id for one in here.dealt.values()])}


def test_sealing_again_changes_nothing(tmp_path):
    here = Sealable(tmp_path)
    first = here.seal()
    here.federation.clock.now += timedelta(hours=1)
    with Unchanged(*here.desks.values()):
        assert here.seal(["clinic-b", "clinic-a"]).json() == first.json()


def test_another_set_replaces_the_seal_until_a_run_exists_and_does_not_prolong_retention(tmp_path):
    here = Sealable(tmp_path, holders=[("a", None), ("b", None), ("c", None)])
    desk = here.desks["S2"]
    assert here.seal().status_code == 200
    here.federation.clock.now += timedelta(days=20)
    second = here.seal(["a", "c"])
    assert second.status_code == 200
    assert [one.holder for one in desk.studies.sealed(here.federation.study).contributions] == ["a", "c"]
    with desk.database.begin() as connection:
        row = {"run": RUN, "study": here.federation.study, "inputs": "0" * 64, "build": "0" * 64, "state": "failed"}
        connection.execute(insert(tables.runs).values(**row))
    with Unchanged(desk):
        refused(here.seal(), Kind.CONFLICT)
        assert here.seal(["a", "c"]).json() == second.json()
    assert desk.studies.sweep(NOW + timedelta(days=30)) == [here.federation.study]


def test_a_run_begins_only_on_the_inputs_that_are_sealed(tmp_path):
    here = Sealable(tmp_path)
    desk, study = here.desks["S2"], here.federation.study
    inputs = inputs_digest(study, [one.id for one in here.dealt.values()])

    def kind_of(inputs):
        with desk.database.begin() as connection, pytest.raises(Problem) as caught:
            desk.studies.require_sealed(connection, study, inputs)
        return caught.value.kind

    assert kind_of(inputs) is Kind.NOT_READY
    here.seal()
    with desk.database.begin() as connection:
        desk.studies.require_sealed(connection, study, inputs)
    assert kind_of("0" * 64) is Kind.CONFLICT
    desk.studies.erase(study)
    assert kind_of(inputs) is Kind.CONFLICT


def forged(signed, **changes):
    return signed.model_copy(update=changes)


def test_a_seal_needs_the_approvals_of_all_servers_and_contributors(tmp_path):
    here = Sealable(tmp_path)
    desk, given = here.desks["S2"], here.approvals
    federation = here.federation
    key = public_digest(ExchangeKey.generate().public)

    def server(name, **changes):
        document = given[SERVERS.index(name)].document.model_copy(update=changes)
        return Signed[Approval].by(document, name, federation.keys[name].signing)

    stolen = given[0].document.exchange_digest
    cases = [
        (given[1:], Kind.NOT_READY),
        (given[:-1], Kind.NOT_READY),
        ([], Kind.NOT_READY),
        ([*given, given[0]], Kind.INVALID),
        ([forged(given[0], signature="0" * 128), *given[1:]], Kind.SIGNATURE_REFUSED),
        ([forged(given[0], signature=given[2].signature), *given[1:]], Kind.SIGNATURE_REFUSED),
        ([*given[:4], forged(given[4], signature=given[3].signature)], Kind.SIGNATURE_REFUSED),
        ([forged(given[0], signer="S9"), *given[1:]], Kind.INVALID),
        ([*given[:4], federation.approval("clinic-b", study="0" * 64)], Kind.INVALID),
        ([*given[:4], federation.approval("clinic-b", role="mpc-server")], Kind.INVALID),
        ([server("S1", exchange_digest=None), *given[1:]], Kind.INVALID),
        ([given[0], given[1], server("S3", exchange_digest=stolen), *given[3:]], Kind.INVALID),
        ([given[0], server("S2", exchange_digest=key), *given[2:]], Kind.CONFLICT),
    ]
    with Unchanged(desk):
        for approvals_given, kind in cases:
            refused(here.seal(given=approvals_given), kind)
    assert here.seal().status_code == 200


@pytest.mark.parametrize("who", ["clinic-a", "S1", Scope.OPERATOR, "impostor"])
def test_only_the_coordinator_may_seal(tmp_path, who):
    here = Sealable(tmp_path)
    if who == "impostor":
        who = here.federation.certificate("coordinator", impostor=True)
    with Unchanged(here.desks["S2"]):
        refused(here.seal(who=who), Kind.FORBIDDEN)


def test_only_complete_contributions_can_be_sealed_one_for_each_holder(tmp_path):
    here = Sealable(
        tmp_path, holders=[("a", None), ("b", None), ("c", None), ("d", None)], contributors=["a", "b", "c"]
    )
    desk = here.desks["S2"]
    offered = dealt(here.federation, "d")
    desk.call("d", "PUT", offered.path, offered.offer("S2"))
    desk.call("c", "DELETE", here.dealt["c"].path)
    body = here.request(["a", "b"])
    ids = body["contributions"]
    cases = [
        ([*ids, offered.id], Kind.NOT_READY),
        ([*ids, "0" * 64], Kind.NOT_READY),
        ([*ids, here.dealt["c"].id], Kind.CONFLICT),
        ([*ids, ids[0]], Kind.INVALID),
        ([], Kind.POLICY_REFUSED),
        (ids[:1], Kind.POLICY_REFUSED),
    ]
    with Unchanged(desk):
        for contributions, kind in cases:
            changed = body | {"contributions": contributions}
            refused(desk.call("coordinator", "PUT", "/seal", changed), kind)
    assert desk.call("coordinator", "PUT", "/seal", body).status_code == 200


def test_columns_must_all_be_there(tmp_path):
    here = Sealable(tmp_path, holders=MIXED)
    desk = here.desks["S2"]
    with Unchanged(desk):
        document = refused(here.seal(["clinic-a", "registry"]), Kind.NOT_READY)
    assert document["columns"] == ["region", "diagnosis"]
    assert here.seal(["registry", "lab"]).status_code == 200


def test_a_study_that_waits_for_the_operator_cannot_be_sealed(tmp_path):
    here = Sealable(tmp_path / "approved")
    desk = here.federation.desk("S2", policy=MANUAL)
    with desk.database.begin() as connection:
        connection.execute(tables.studies.update().values(state="judged"))
    with Unchanged(desk):
        refused(desk.call("coordinator", "PUT", "/seal", here.request()), Kind.NOT_READY)


def test_the_operator_erases_and_every_contribution_gets_a_receipt(tmp_path):
    here = Sealable(tmp_path, holders=COLUMNS, slots=2000)
    desk, study = here.desks["S2"], here.federation.study
    here.seal()
    desk.store.put(f"{study}/{RUN}/counts", desk.studies.data_key(study), b"counts")
    keys = wrapped_keys(desk)
    assert len(keys) == 3
    response = desk.call(Scope.OPERATOR, "DELETE", "/shares")
    assert response.status_code == 200
    receipts = [Signed[Receipt].model_validate(one) for one in response.json()]
    assert {one.document.contribution for one in receipts} == {one.id for one in here.dealt.values()}
    for one in receipts:
        assert one.verify(here.federation.manifest.server("S2")).event == "erased"
    assert desk.call("coordinator", "GET").json()["state"] == "erased"
    assert all_gone(desk, study, here.dealt.values())
    files = [path.read_bytes() for path in (desk.home / "state").rglob("*") if path.is_file()]
    assert not any(key in content for key in keys for content in files)
    with Unchanged(desk):
        assert desk.call(Scope.OPERATOR, "DELETE", "/shares").json() == response.json()
        refused(here.seal(), Kind.CONFLICT)
        assert desk.propose().status_code == 200
    assert here.desks["S1"].contributions.load(here.dealt["lab"].id)


def all_gone(desk, study, contributions):
    for read in (
        lambda: desk.studies.exchange_key(study),
        lambda: desk.studies.data_key(study),
        *(lambda one=one: desk.contributions.load(one.id) for one in contributions),
    ):
        with pytest.raises(LocalError, match="erased"):
            read()
    shares = desk.home / "state" / "shares"
    return not [path for path in shares.rglob("*") if path.is_file()] and desk.store.contributions() == []


def test_shares_are_not_erased_under_a_run(tmp_path):
    here = Sealable(tmp_path)
    desk = here.desks["S2"]
    here.seal()
    row = {"run": RUN, "study": here.federation.study, "inputs": "0" * 64, "build": "0" * 64, "state": "going"}
    with desk.database.begin() as connection:
        connection.execute(insert(tables.runs).values(**row))
    with Unchanged(desk):
        refused(desk.call(Scope.OPERATOR, "DELETE", "/shares"), Kind.CONFLICT)
        for who in ("coordinator", "clinic-a", Scope.AUDITOR):
            refused(desk.call(who, "DELETE", "/shares"), Kind.FORBIDDEN)


def test_a_coordinator_has_so_many_studies_here_and_no_more(tmp_path):
    policy = Policy(populations=POPULATIONS, most_studies=2)
    federation = Parties(tmp_path)
    desk = federation.desk(policy=policy)

    def propose(title):
        manifest = Manifest.from_json(federation.manifest.to_json() | {"title": title})
        return desk.call("coordinator", "PUT", f"/v1/studies/{manifest.study_id}", manifest)

    assert [propose(title).status_code for title in ("one", "two", "two")] == [202] * 3
    with Unchanged(desk):
        response = propose("three")
        assert "most_studies" in refused(response, Kind.TOO_MANY)["detail"]
        assert response.headers["retry-after"] == "3600"
        assert response.json()["retryable"]
    first = desk.call(Scope.OPERATOR, "GET", "/v1/studies").json()[0]["study"]
    assert desk.call(Scope.OPERATOR, "DELETE", f"/v1/studies/{first}/shares").status_code == 200
    assert propose("three").status_code == 202


def test_an_unknown_study_is_not_found(federation, desk):
    for who, method, path, document in (
        ("coordinator", "PUT", "/seal", {"contributions": [], "approvals": []}),
        (Scope.OPERATOR, "DELETE", "/shares", None),
        (Scope.OPERATOR, "POST", "/approval", None),
        ("coordinator", "GET", "/contributions", None),
    ):
        refused(desk.call(who, method, path, document), Kind.NOT_FOUND)


@pytest.mark.parametrize("sealed", [False, True])
def test_retention_erases_when_the_time_of_the_manifest_is_over(tmp_path, sealed):
    here = Sealable(tmp_path, retention_days=7)
    desk, study = here.desks["S2"], here.federation.study
    here.federation.clock.now += timedelta(days=2)
    begin = NOW
    if sealed:
        here.seal()
        begin += timedelta(days=2)
    due = begin + timedelta(days=7)
    with Unchanged(desk):
        assert desk.studies.sweep(due - timedelta(seconds=1)) == []
    here.federation.clock.now = due
    assert desk.studies.sweep(due) == [study]
    assert all_gone(desk, study, here.dealt.values())
    state = desk.call("clinic-a", "GET", here.dealt["clinic-a"].path).json()
    assert (state["state"], state["receipt"]["document"]["event"]) == ("erased", "erased")
    with Unchanged(desk):
        assert desk.studies.sweep(due) == []


def test_every_route_is_described(desk):
    paths = desk.app.openapi()["paths"]
    base = "/v1/studies/{study}"
    assert {(path, method) for path, methods in paths.items() for method in methods if path.startswith("/v1")} == {
        ("/v1/studies", "get"),
        (base, "put"),
        (base, "get"),
        (f"{base}/manifest", "get"),
        (f"{base}/approval", "post"),
        (f"{base}/decline", "post"),
        (f"{base}/seal", "put"),
        (f"{base}/shares", "delete"),
        (f"{base}/contributions", "get"),
        (f"{base}/contributions/{{contribution}}", "put"),
        (f"{base}/contributions/{{contribution}}", "get"),
        (f"{base}/contributions/{{contribution}}", "delete"),
        (f"{base}/contributions/{{contribution}}/chunks/{{number}}", "put"),
        (f"{base}/contributions/{{contribution}}/receipt", "post"),
        (f"{base}/oprf", "post"),
        (f"{base}/tags", "put"),
        (f"{base}/positions", "get"),
    }
    assert set(paths[base]["put"]["responses"]) >= {"200", "201", "202", "4XX"}
    assert "$defs" not in str(paths)


@pytest.mark.parametrize("party", ["S3", "clinic-a", "coordinator"])
def test_a_study_with_a_denied_key_is_refused(federation, desk, party):
    (denied,) = (one for one in federation.manifest.parties if one.name == party)
    revoke(desk.home / "policy.yaml", denied.pin, since="2026-11-17T09:00:00Z", reason=None)
    document = refused(desk.propose(), Kind.POLICY_REFUSED)
    assert document["objections"] == [f"{party} has a key that is denied here"]
