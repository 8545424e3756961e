"""The author's pages: a study's manifest step by step, a plan in both directions, the proposal, and who has approved.

Whatever a form has is kept in the draft before it is judged; what is wrong with it follows from the draft, and stands
beside it whenever the page is opened. Code books, cards and spellings that somebody tries are read and not kept: a file
that should not have been sent is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from caps.basics.recent import Recent
from caps.data.schema.codebooks import MOST_CODES, read_codebook
from caps.data.schema.templates import TEMPLATES, suggestion
from caps.errors import DomainError
from caps.service.identity import Allow, Caller
from caps.service.pages.entrance import ROOT
from caps.service.pages.forms import Fields, Form
from caps.service.pages.rendering import Link, Pages, see_other
from caps.service.problems import Problem
from caps.service.site import Site
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.study.planning import EPSILONS, Planned, RelativeError, declared_costs, epsilon_for, plan_study
from caps.trust import signing
from caps.trust.cards import ROLES, Card, Party
from caps.wire.problems import Kind
from services.coordinator.authoring.columns import KINDS, MISSING, by_name_and_template, described, in_words, typed
from services.coordinator.authoring.draft import (
    ALGORITHMS,
    MOST_KEYS,
    MOST_QUERIES,
    SCHEME_WORDS,
    STEPS,
    Draft,
    Judged,
    Step,
    TypedKey,
    TypedQuery,
    judged,
    read_cards,
    step_of,
    tried,
)
from services.coordinator.authoring.drafts import KEPT, Drafts
from services.coordinator.store import Store
from services.coordinator.studies import Studies
from services.coordinator.views import participation_view, study_view

PATH, PROPOSALS = f"{ROOT}/drafts", f"{ROOT}/proposals"
AUTHORS = (Scope.OPERATOR,)
"""Those who may propose studies."""
LINKS = (Link.to("Write a study", PATH, *AUTHORS),)
SAVING = rf"{PATH}/[0-9a-f]{{32}}/[a-z]+(?:/\d+)?/(?:save|keep)"
"""Where forms of a draft are sent: with a code book, they may be long."""
_EARLIER, _WORST, _KEPT = 10, 8, 32
_BESIDE = {"seen", "saved", "last_key", "new_name", "new_asked", "left_out", "persons", "wished", "proposed"}
"""What a draft has and its manifest does not."""
Author = Annotated[Caller, Depends(Allow(scopes=AUTHORS))]
DraftId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
StudyId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
_FORMAT = re.compile(r"[^A-Za-z0-9]+")


class Refused(Exception):
    """What was asked of a form cannot be done. echo: what was typed and is not kept."""

    def __init__(self, field: str, why: str, echo: Mapping[str, str]) -> None:
        super().__init__(why)
        self.field, self.why, self.echo = field, why, echo


def add_to(routes: APIRouter, pages: Pages, site: Site, store: Store, studies: Studies, drafts: Drafts) -> None:
    """The author's routes."""
    wizard = _Wizard(pages, site, store, drafts)

    @routes.get("/drafts")
    def listed(request: Request, caller: Author) -> Response:
        """A person's drafts, and a button for a new one."""
        return pages.page(request, "author_drafts.html", drafts=drafts.of(_name(caller)), days=KEPT.days)

    @routes.post("/drafts/new")
    def new(request: Request, caller: Author) -> Response:
        """Begin a draft."""
        made = drafts.new(_name(caller))
        drafts.change(_name(caller), made, lambda draft: setattr(draft, "url", wizard.own_url(request)))
        return see_other(f"{PATH}/{made}/about")

    @routes.get("/drafts/{draft}")
    def opened(draft: DraftId, caller: Author) -> Response:
        """The first step that is not done."""
        found = wizard.found(caller, draft)
        judgement = wizard.judged(found)
        wrong = {step_of(one.place) for one in judgement.errors}
        return see_other(f"{PATH}/{draft}/{next((step for step in STEPS if step in wrong), 'review')}")

    @routes.post("/drafts/{draft}/remove")
    def remove(draft: DraftId, caller: Author) -> Response:
        """Forget a draft."""
        drafts.remove(_name(caller), draft)
        return see_other(PATH)

    @routes.get("/drafts/{draft}/download")
    def download(draft: DraftId, caller: Author) -> Response:
        """The manifest as YAML, finished or not."""
        found = wizard.found(caller, draft)
        name = _FORMAT.sub("-", found.title.lower()).strip("-")[:40] or "study"
        headers = {"Content-Disposition": f'attachment; filename="{name}.yaml"'}
        return Response(wizard.judged(found).text, media_type="application/yaml", headers=headers)

    @routes.get("/drafts/{draft}/columns/{key}")
    def column(draft: DraftId, key: int, request: Request, caller: Author) -> Response:
        """One column."""
        found = wizard.found(caller, draft)
        return wizard.column(request, draft, found, key)

    @routes.post("/drafts/{draft}/columns/{key}/save")
    def save_column(draft: DraftId, key: int, form: Fields, caller: Author) -> Response:
        """Keep what was typed of a column; go back to all columns if it is one."""
        wizard.found(caller, draft)

        def change(found: Draft) -> None:
            one = found.column(key)
            if one is not None:
                for field in ("name", "kind", "values", "other", "format", "missing", "missing_values"):
                    setattr(one, field, form.one(field).replace("\r", ""))

        found = wizard.changed(caller, draft, change)
        one = found.column(key)
        wrong = one is not None and wizard.judged(found).at(f"schema.columns[{found.columns.index(one)}]")
        return see_other(f"{PATH}/{draft}/columns/{key}" if wrong else f"{PATH}/{draft}/columns")

    @routes.get("/drafts/{draft}/{step}")
    def shown(draft: DraftId, step: Step, request: Request, caller: Author) -> Response:
        """A step, with what was typed so far, and what is wrong with it."""
        return wizard.step(request, draft, wizard.found(caller, draft), step)

    @routes.post("/drafts/{draft}/{step}/keep")
    def keep(draft: DraftId, step: Step, form: Fields, caller: Author) -> Response:
        """Keep what is typed, as it is typed, unless a form was sent since."""

        def take(found: Draft) -> None:
            if form.one("saved", "0") == str(found.saved):
                _TAKERS[step](found, form)

        wizard.changed(caller, draft, take)
        return Response(status_code=204)

    @routes.post("/drafts/{draft}/{step}/save")
    def save(draft: DraftId, step: Step, form: Fields, request: Request, caller: Author) -> Response:
        """Keep what was typed, and do what the button says."""
        asked, _, detail = form.one("do", "go").partition(":")

        def take(found: Draft) -> None:
            _TAKERS[step](found, form)
            found.saved += 1

        kept = wizard.changed(caller, draft, take)
        try:
            if asked == "try":
                return wizard.step(request, draft, kept, step, **_trial(kept, form))
            if (action := _ACTIONS.get((step, asked))) is not None:
                kept = wizard.changed(caller, draft, lambda found: action(found, form, detail, store))
                typing = asked == "type" and kept.columns
                return see_other(f"{PATH}/{draft}/{step}" + (f"/{kept.columns[-1].key}" if typing else ""))
        except Refused as error:
            return wizard.step(request, draft, kept, step, status=422, refused=error)
        if asked != "go":
            return see_other(f"{PATH}/{draft}/{step}")

        def see(found: Draft) -> None:
            found.seen = sorted({*found.seen, step})

        kept = wizard.changed(caller, draft, see)
        wrong = any(one.severity == "error" for one in wizard.judged(kept).of_step(step))
        order = list(STEPS)
        return see_other(f"{PATH}/{draft}/{step if wrong else order[min(order.index(step) + 1, len(order) - 1)]}")

    @routes.post("/drafts/{draft}/review/propose")
    def propose(draft: DraftId, caller: Author) -> Response:
        """Propose the study, as `POST /v1/studies` does. Doing it twice is doing it once."""
        found = wizard.judged(wizard.found(caller, draft))
        if found.manifest is None:
            return see_other(f"{PATH}/{draft}/review")
        manifest, _ = studies.propose(found.manifest.to_json())
        wizard.changed(caller, draft, lambda kept: setattr(kept, "proposed", manifest.study_id))
        return see_other(f"{PROPOSALS}/{manifest.study_id}")

    @routes.get("/proposals/{study}")
    def proposal(study: StudyId, request: Request, caller: Author) -> Response:
        """Who has approved a study, who has declined it and why, and whom it waits for."""
        manifest = studies.shown(study, caller)
        view = study_view(store, studies, study, caller)
        return pages.page(request, "author_proposal.html", view=view, manifest=manifest)

    @routes.post("/proposals/{study}/refresh")
    def refresh(study: StudyId, caller: Author) -> Response:
        """Ask again the servers that have not approved."""
        studies.refresh(study)
        return see_other(f"{PROPOSALS}/{study}")

    @routes.get("/proposals/{study}/contributions")
    def contributions(study: StudyId, request: Request, caller: Author) -> Response:
        """Who has contributed: the servers are asked."""
        manifest = studies.shown(study, caller)
        view = participation_view(studies, study)
        return pages.page(request, "author_contributions.html", view=view, manifest=manifest)


def _name(caller: Caller) -> str:
    assert caller.person is not None
    return caller.person.name


class _Wizard:
    """What the pages of all steps share."""

    def __init__(self, pages: Pages, site: Site, store: Store, drafts: Drafts) -> None:
        self._pages, self._site, self._store, self._drafts = pages, site, store, drafts
        self._me = Party(name=site.name, pin=site.pin, signing_key=signing.public_hex(site.signing_key))
        self._judged: Recent[bytes, Judged] = Recent(_KEPT)
        self._needed: Recent[tuple[str, float, int], tuple[Planned | None]] = Recent(_KEPT)

    def found(self, caller: Caller, draft: str) -> Draft:
        """A person's draft. Raises a problem if there is none."""
        return self._there(self._drafts.find(_name(caller), draft))

    def changed(self, caller: Caller, draft: str, change: Callable[[Draft], None]) -> Draft:
        """A person's draft after a change. Raises a problem if there is none."""
        return self._there(self._drafts.change(_name(caller), draft, change))

    def _there(self, found: Draft | None) -> Draft:
        if found is None:
            raise Problem(
                Kind.NOT_FOUND,
                "you have no such draft",
                hint=f"it was removed, it is another person's, or nobody changed it for {KEPT.days} days",
            )
        return found

    def judged(self, draft: Draft) -> Judged:
        """What `caps study check` says. A draft is judged once, however often it is looked at."""
        key = sha256(draft.model_dump_json(exclude=_BESIDE).encode()).digest()
        return self._judged.obtain(key, lambda: judged(draft, self._me))

    def own_url(self, request: Request) -> str:
        """This coordinator's address, as earlier studies have it; or as the author's browser does."""
        for manifest in self._earlier():
            if self._site.is_me(manifest.coordinator):
                return manifest.coordinator.url
        return f"https://{request.headers.get('host', '')}"

    def _epsilon_for(self, manifest: Manifest, wished: float, persons: int) -> Planned | None:
        key = manifest.study_id, wished, persons
        return self._needed.obtain(key, lambda: (epsilon_for(manifest, wished, persons),))[0]

    def _earlier(self) -> list[Manifest]:
        found = (self._store.manifest(study) for study in reversed(self._store.studies()[-_EARLIER:]))
        return [manifest for manifest in found if manifest is not None]

    def column(self, request: Request, identity: str, draft: Draft, key: int) -> Response:
        """The page of one column."""
        one = draft.column(key)
        if one is None:
            raise Problem(Kind.NOT_FOUND, "the draft has no such column; it may have been removed")
        judgement = self.judged(draft)
        place = f"schema.columns[{draft.columns.index(one)}]"
        return self._pages.page(
            request,
            "author_column.html",
            **self._common(identity, draft, "columns", judgement),
            column=one,
            kinds=KINDS,
            missing=MISSING,
            wrong=judgement.at(place),
        )

    def step(
        self, request: Request, identity: str, draft: Draft, step: Step, *, status: int = 200, **more: Any
    ) -> Response:
        """The page of a step."""
        judgement = self.judged(draft)
        given: dict[str, Any] = {"refused": None, "trial": None, "echo": {}}
        given |= self._common(identity, draft, step, judgement)
        if step == "columns":
            given |= _columns_shown(draft)
        elif step == "parties":
            given |= {"earlier": self._earlier(), "schemes": SCHEME_WORDS}
        elif step == "question":
            given["algorithms"] = ALGORITHMS
        elif step == "privacy":
            given |= _planned(draft, judgement, self._epsilon_for)
        elif step == "review" and judgement.manifest is not None:
            given["plan"] = plan_study(judgement.manifest, declared_costs(judgement.manifest))
        if (refused := more.get("refused")) is not None:
            more["echo"] = refused.echo
        here = f"{PATH}/{identity}/{step}"
        return self._pages.page(request, f"author_{step}.html", status=status, **given | more | {"here": here})

    def _common(self, identity: str, draft: Draft, step: Step, judgement: Judged) -> dict[str, Any]:
        wrong = {step_of(one.place) for one in judgement.errors}
        return {
            "id": identity,
            "base": f"{PATH}/{identity}",
            "draft": draft,
            "step": step,
            "steps": STEPS,
            "undone": wrong,
            "judged": judgement,
            "shown": [one for one in judgement.of_step(step) if step in draft.seen and one.severity == "error"],
            "here": f"{PATH}/{identity}/{step}",
        }


def _columns_shown(draft: Draft) -> dict[str, Any]:
    """Each column in a line; and what is wrong with the one that is to be added, if it was tried."""
    rows = []
    for column in draft.columns:
        try:
            rows.append((column, in_words(described(column)), ""))
        except DomainError as error:
            rows.append((column, "", str(error)))
    wrong = ""
    if draft.new_name or draft.new_asked:
        try:
            by_name_and_template(draft.new_name, draft.new_asked)
        except DomainError as error:
            wrong = str(error)
    hint = suggestion(draft.new_name) if draft.new_name else None
    return {"rows": rows, "templates": TEMPLATES, "most": MOST_CODES, "kinds": KINDS, "wrong": wrong, "hint": hint}


def _planned(
    draft: Draft, judgement: Judged, inverse: Callable[[Manifest, float, int], Planned | None]
) -> dict[str, Any]:
    """The plan in both directions, as far as the draft has what it needs."""
    found: dict[str, Any] = {"errors": [], "average": None, "needed": None, "problem": "", "persons": None}
    found["waits"] = [step for step in STEPS if step in {step_of(one.place) for one in judgement.errors}]
    persons = _count(draft.persons)
    found["persons"] = persons
    if judgement.manifest is None or persons is None:
        return found
    plan = plan_study(judgement.manifest)
    ranked: Sequence[RelativeError] = sorted(plan.relative_errors(persons), key=lambda one: -one.misplaced)
    found |= {"errors": ranked[:_WORST], "tables": len(ranked), "average": plan.average_error(persons)}
    found["advice"] = plan.advice(persons)
    if draft.wished:
        try:
            wished = float(draft.wished.removesuffix("%").strip().replace(",", ".")) / 100
            needed = inverse(judgement.manifest, wished, persons)
            found |= {"needed": needed, "out_of_reach": needed is None, "wished": wished}
        except ValueError:
            found["problem"] = "give a percentage of all persons, as 5"
        except DomainError:
            found["problem"] = "give a percentage above 0 and below 100"
    return found


def _count(text: str) -> int | None:
    digits = re.sub(r"[\s,_']", "", text)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 12 and int(digits) else None


def _take(*names: str) -> Callable[[Draft, Form], None]:
    """Takes these texts from a form, if it has them."""

    def take(draft: Draft, form: Form) -> None:
        for name in names:
            if form.has(name):
                setattr(draft, name, form.one(name).replace("\r", ""))

    return take


def _take_parties(draft: Draft, form: Form) -> None:
    _take("url", "scheme")(draft, form)
    names = {column.name for column in draft.columns}
    for card in draft.cards_of("holder"):
        if form.has(f"brings:{card.name}"):
            said = draft.holder(card.name)
            said.brings = form.one(f"brings:{card.name}")
            said.columns = [name for name in form.many(f"columns:{card.name}") if name in names]
            draft.holders[card.name] = said


def _take_matching(draft: Draft, form: Form) -> None:
    _take("matching", "mode", "key_missing", "slots", "slot_column")(draft, form)
    for key in draft.keys:
        for field in ("name", "kind", "case", "whitespace", "remove", "formats"):
            if form.has(f"{field}:{key.key}"):
                setattr(key, field, form.one(f"{field}:{key.key}"))
    for card in draft.cards_of("holder"):
        if form.has(f"capacity:{card.name}"):
            draft.holders[card.name] = draft.holder(card.name).model_copy(
                update={"capacity": form.one(f"capacity:{card.name}")}
            )


def _take_question(draft: Draft, form: Form) -> None:
    _take("workload", "label", "algorithm")(draft, form)
    names = {column.name for column in draft.columns}
    for query in draft.queries:
        if form.has(f"weight:{query.key}"):
            query.weight = form.one(f"weight:{query.key}")
            query.attributes = [name for name in form.many(f"attributes:{query.key}") if name in names]


_TAKERS: Mapping[str, Callable[[Draft, Form], None]] = {
    "about": _take("title", "purpose", "population"),
    "columns": _take("new_name", "new_asked"),
    "parties": _take_parties,
    "matching": _take_matching,
    "question": _take_question,
    "privacy": _take("epsilon", "delta", "neighbouring", "multiplicity", "rows", "persons", "wished"),
    "review": _take(),
}


def _add_column(draft: Draft, form: Form, detail: str, store: Store) -> None:
    try:
        made = by_name_and_template(draft.new_name, draft.new_asked)
    except DomainError:
        return  # what was typed stays, and the page says what is wrong with it
    if isinstance(made, str):
        draft.left_out[draft.new_name[:128]] = made
    else:
        draft.add_columns([made])
    draft.new_name = draft.new_asked = ""


def _type_column(draft: Draft, form: Form, detail: str, store: Store) -> None:
    draft.add_columns([typed({"name": draft.new_name, "kind": "categorical"})])
    draft.new_name = draft.new_asked = ""


def _remove_column(draft: Draft, form: Form, detail: str, store: Store) -> None:
    draft.columns = [one for one in draft.columns if str(one.key) != detail]


def _move_column(draft: Draft, form: Form, detail: str, store: Store) -> None:
    at = next((at for at, one in enumerate(draft.columns) if str(one.key) == detail), 0)
    if at:
        draft.columns[at - 1 : at + 1] = [draft.columns[at], draft.columns[at - 1]]


def _read_codebook(draft: Draft, form: Form, detail: str, store: Store) -> None:
    text = form.one("codebook")
    try:
        found = read_codebook(text.encode())
        if not found.columns:
            raise DomainError("the code book describes no column that can be counted")
        draft.add_columns(typed(column) for column in found.columns)
    except DomainError as error:
        raise Refused("codebook", str(error), {"codebook": text}) from None
    draft.left_out |= dict(list(found.left_out.items())[:100])


def _add_cards(draft: Draft, form: Form, detail: str, store: Store) -> None:
    text = form.one("cards")
    try:
        draft.add_cards(read_cards(text))
    except DomainError as error:
        raise Refused("cards", str(error), {"cards": text}) from None


def _take_cards(draft: Draft, form: Form, detail: str, store: Store) -> None:
    """The parties of an earlier study."""
    manifest = store.manifest(detail)
    if manifest is None:
        return
    cards = []
    for role, parties in zip(ROLES, (manifest.servers, (), manifest.holders), strict=True):
        for one in parties:
            known = {name: value for name, value in one.to_json().items() if name in Card.model_fields}
            cards.append(Card.of_json({"role": role, **known}, one.name))
    draft.add_cards(cards)
    draft.scheme = manifest.scheme


def _remove_card(draft: Draft, form: Form, detail: str, store: Store) -> None:
    draft.cards = [card for card in draft.cards if f"{card.role}/{card.name}" != detail]


def _add_key(draft: Draft, form: Form, detail: str, store: Store) -> None:
    if len(draft.keys) < MOST_KEYS:
        draft.keys.append(TypedKey(key=draft.next_key()))


def _remove_key(draft: Draft, form: Form, detail: str, store: Store) -> None:
    draft.keys = [one for one in draft.keys if str(one.key) != detail]


def _add_query(draft: Draft, form: Form, detail: str, store: Store) -> None:
    if len(draft.queries) < MOST_QUERIES:
        draft.queries.append(TypedQuery(key=draft.next_key()))


def _remove_query(draft: Draft, form: Form, detail: str, store: Store) -> None:
    draft.queries = [one for one in draft.queries if str(one.key) != detail]


def _use_epsilon(draft: Draft, form: Form, detail: str, store: Store) -> None:
    if detail in EPSILONS:
        draft.epsilon = detail


_ACTIONS: Mapping[tuple[str, str], Callable[[Draft, Form, str, Store], None]] = {
    ("columns", "add"): _add_column,
    ("columns", "type"): _type_column,
    ("columns", "remove"): _remove_column,
    ("columns", "up"): _move_column,
    ("columns", "codebook"): _read_codebook,
    ("parties", "cards"): _add_cards,
    ("parties", "take"): _take_cards,
    ("parties", "remove"): _remove_card,
    ("matching", "add"): _add_key,
    ("matching", "remove"): _remove_key,
    ("question", "add"): _add_query,
    ("question", "remove"): _remove_query,
    ("privacy", "use"): _use_epsilon,
}


def _trial(draft: Draft, form: Form) -> dict[str, Any]:
    """Whether two spellings meet. They are shown again, and kept nowhere."""
    echo = {f"{which}:{key.key}": form.one(f"{which}:{key.key}") for key in draft.keys for which in ("one", "two")}
    spellings = [{key.name: echo[f"{which}:{key.key}"] for key in draft.keys} for which in ("one", "two")]
    try:
        return {"trial": tried(draft, spellings), "echo": echo}
    except DomainError as error:
        raise Refused("try", f"the key is not complete: {error}", echo) from None
