"""Pages of releases, for analysts: a catalogue, what each release says about itself, its files and further samples.

Everything here follows from published files, and is shown to those who may read them by REST.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Path, Request, Response
from markupsafe import Markup

from caps.basics import canonical
from caps.basics.recent import Recent
from caps.dp.privacy import PrivacyStatement
from caps.service.identity import Allow, Caller
from caps.service.pages.forms import Fields
from caps.service.pages.rendering import ROOT, Link, Pages, allowed, see_other
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.wire import media
from caps.wire.problems import Kind
from caps.wire.releases import MEASUREMENTS, TRANSCRIPT
from services.coordinator import content, formats
from services.coordinator.findings import AllFindings, Findings, cells_of
from services.coordinator.pages import figures
from services.coordinator.pages.report import Reports, shared
from services.coordinator.publish import LARGEST_SAMPLE, Publisher
from services.coordinator.store import Release, Sample, Store

PATH = f"{ROOT}/releases"
READERS = (Scope.ANALYST, Scope.OPERATOR, Scope.AUDITOR)
SAMPLERS = (Scope.ANALYST, Scope.OPERATOR)
CARDS, COLUMNS = 25, 20
"""On one page."""
MOST_MAPS = 16
"""Maps that are kept as they are drawn: of 60 columns, each takes a megabyte."""
SORTS = (("newest", "newest first"), ("title", "title"), ("epsilon", "smallest epsilon"), ("rows", "most rows"))
TABS = (
    ("", "Release"),
    ("columns", "Columns"),
    ("pairs", "Pairs"),
    ("correlations", "Correlations"),
    ("residuals", "Residuals"),
    ("rounds", "Rounds"),
    ("count", "Count persons"),
    ("samples", "Samples"),
)
LINKS = (Link.to("Releases", PATH, *READERS),)
LEVELS = {"90": 0.9, "95": 0.95, "99": 0.99}

ReleaseId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
Position = Annotated[int, Path(ge=0, le=100_000)]
Reader = Annotated[Caller, Depends(Allow(scopes=READERS))]
Sampler = Annotated[Caller, Depends(Allow(scopes=SAMPLERS))]


@dataclass(frozen=True)
class Card:
    """A release in the catalogue."""

    release: str
    title: str
    epsilon: str
    certified: bool
    at: str
    holders: tuple[str, ...]
    rows: int
    columns: int
    files: list[tuple[str, int]]

    @classmethod
    def of(cls, release: Release) -> Card:
        """What the certificate says."""
        manifest, body = release.certificate.manifest, release.certificate.release.document
        return cls(
            release.release,
            manifest.title,
            manifest.privacy.epsilon,
            manifest.algorithm.certified,
            release.created_at,
            release.certificate.attestations[0].document.holders,
            body.rows,
            len(manifest.domain.names),
            listed_files(release),
        )

    def fits(self, search: str) -> bool:
        """Whether a search finds it."""
        wanted = search.casefold()
        return self.release.startswith(wanted) or any(wanted in one.casefold() for one in (self.title, *self.holders))


def listed_files(one: Release | Sample) -> list[tuple[str, int]]:
    """The formats of the rows, with their sizes."""
    return [(form.name, one.files[form.file].size) for form in formats.of_files(one.files)]


def add_to(routes: APIRouter, pages: Pages, store: Store, publisher: Publisher, found: AllFindings) -> None:
    """Add the routes of one coordinator."""
    _add_catalogue(routes, pages, store)
    _add_figures(routes, pages, found)
    _add_questions(routes, pages, found)
    _add_samples(routes, pages, store, publisher)
    _add_files(routes, publisher, Reports(pages, found))


def _add_catalogue(routes: APIRouter, pages: Pages, store: Store) -> None:
    @routes.get("/releases")
    def releases(request: Request, caller: Reader) -> Response:
        """All releases as cards."""
        search, sort = request.query_params.get("search", "")[:100].strip(), request.query_params.get("sort", "newest")
        order: dict[str, Any] = {
            "newest": lambda _: 0,
            "title": lambda card: card.title.casefold(),
            "epsilon": lambda card: float(card.epsilon),
            "rows": lambda card: -card.rows,
        }
        sort = sort if sort in order else "newest"
        cards = [card for card in map(Card.of, reversed(store.releases())) if card.fits(search)]
        cards.sort(key=order[sort])
        page = page_of(request)
        part = cards[CARDS * (page - 1) : CARDS * page]
        return pages.page(
            request,
            "releases.html",
            cards=part,
            search=search,
            sort=sort,
            sorts=SORTS,
            page=page,
            more=CARDS * page < len(cards),
            query=urlencode({"search": search, "sort": sort}),
        )


def _add_figures(routes: APIRouter, pages: Pages, found: AllFindings) -> None:
    def shown(request: Request, template: str, findings: Findings, **context: Any) -> Response:
        return pages.page(request, template, **around(findings.release), findings=findings, **context)

    maps: Recent[tuple[str, str], Markup] = Recent(MOST_MAPS)

    def drawn(release: str, template: str, context: Callable[[], dict[str, Any]]) -> Markup:
        """A map of pairs. With 60 columns it has thousands of tiles, so it is drawn once."""
        key = release, template
        return maps.find(key) or maps.keep(key, Markup(pages.file(template, **context())))  # noqa: S704  escaped there

    @routes.get("/releases/{release}")
    def release(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """The release: privacy, certificate, files, scores."""
        findings = found.of(release)
        manifest, attested = findings.manifest, findings.release.certificate.attestations[0].document
        parties = [
            *(("server", one) for one in manifest.servers),
            ("coordinator", manifest.coordinator),
            *(("holder", one) for one in manifest.holders),
        ]
        return shown(
            request,
            "release.html",
            findings,
            statement=PrivacyStatement.from_json(canonical.dump(attested.statement)),
            attested=attested,
            parties=parties,
            files=listed_files(findings.release),
            snippet_column=findings.names[0],
        )

    @routes.get("/releases/{release}/columns")
    def columns(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """Every column, synthetic and measured."""
        findings, shares, page = found.of(release), request.query_params.get("show") == "shares", page_of(request)
        part = findings.one_ways[COLUMNS * (page - 1) : COLUMNS * page]
        return shown(
            request,
            "release_columns.html",
            findings,
            listed=[figures.bars_of(one, shares=shares) for one in part],
            shares=shares,
            page=page,
            more=COLUMNS * page < len(findings.names),
        )

    @routes.get("/releases/{release}/pairs")
    def pairs(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """The map of all pairs."""
        findings = found.of(release)
        where = f"{PATH}/{release}/pairs"
        return shown(
            request,
            "release_pairs.html",
            findings,
            map=drawn(release, "pair_map.html", lambda: {"findings": findings, "where": where} | shared(findings)),
        )

    @routes.get("/releases/{release}/pairs/{first}/{second}")
    def pair(release: ReleaseId, first: Position, second: Position, request: Request, caller: Reader) -> Response:
        """The table of two columns."""
        findings = found.of(release)
        if (first, second) not in findings.pairs:
            raise Problem(Kind.NOT_FOUND, "this release has no such pair of columns", release=release)
        names, one = (findings.names[first], findings.names[second]), findings.pairs[first, second]
        rows, deviation = figures.cells_of(findings, first, second)
        return shown(
            request,
            "release_pair.html",
            findings,
            pair=one,
            names=names,
            words=figures.pair_words(findings, one),
            labels=findings.cells[names[0]],
            columns=findings.cells[names[1]],
            rows=rows,
            deviation=deviation,
        )

    @routes.get("/releases/{release}/correlations")
    def correlations(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """How columns go together."""
        findings = found.of(release)
        return shown(
            request,
            "release_correlations.html",
            findings,
            map=drawn(release, "associations.html", lambda: {"findings": findings, "level": figures.association_level}),
        )

    @routes.get("/releases/{release}/residuals")
    def residuals(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """The model against the noisy counts."""
        return shown(request, "release_residuals.html", found.of(release))

    @routes.get("/releases/{release}/rounds")
    def rounds(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """What was measured, round by round."""
        findings = found.of(release)
        return shown(request, "release_rounds.html", findings, graph=figures.graph_of(findings))


def _add_questions(routes: APIRouter, pages: Pages, found: AllFindings) -> None:
    @routes.get("/releases/{release}/count")
    def count(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """A number of persons with its interval. Addresses name columns and cells by position, not by value."""
        findings, asked = found.of(release), request.query_params
        ticked, by = asked.getlist("where"), [one for one in asked.getlist("by") if one]
        level = asked.get("level", "95")
        where = conditions_of(findings.names, findings.cells, ticked)
        groups = [findings.names[number_of(one, len(findings.names))] for one in by]
        if level not in LEVELS or len(groups) > 2:
            raise Problem(Kind.INVALID, "ask for at most two groups, and a level of 90, 95 or 99 %", release=release)
        answer = findings.estimates.estimate(where, groups, level=LEVELS[level]) if asked else None
        told = answer or []
        chosen: list[int | None] = [findings.names.index(name) for name in groups]
        return pages.page(
            request,
            "release_count.html",
            **around(findings.release),
            findings=findings,
            columns=list(findings.cells.items()),
            ticked=set(ticked),
            by=[*chosen, None, None][:2],
            level=level,
            found=answer,
            groups=groups,
            question=_question(where, groups),
            bounded=all(one.low is not None and one.high is not None for one in told),
            labels=[" × ".join(one.group.values()) for one in told],
            values=[round(one.count) for one in told],
            bands=[(round(one.low or 0), round(one.high or 0)) for one in told],
            bases=list(dict.fromkeys(one.basis for one in told)),
        )


def _add_samples(routes: APIRouter, pages: Pages, store: Store, publisher: Publisher) -> None:
    @routes.get("/releases/{release}/samples")
    def samples(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """Further samples, and a form to draw one."""
        found = publisher.release(release)
        manifest = found.certificate.manifest
        return pages.page(
            request,
            "release_samples.html",
            **around(found),
            samples=list(reversed(store.samples(release))),
            columns=list(cells_of(manifest).items()),
            may_sample=allowed(caller.person, SAMPLERS) and manifest.publication.resamples,
            most=LARGEST_SAMPLE,
            files_of=listed_files,
        )

    @routes.post("/releases/{release}/samples/draw")
    def draw(release: ReleaseId, form: Fields, caller: Sampler) -> Response:
        """Draw a sample."""
        found = publisher.release(release)
        cells = cells_of(found.certificate.manifest)
        where = conditions_of(list(cells), cells, form.many("where"))
        rows, seed = form.one("rows"), form.one("seed")
        if rows and not (rows.isascii() and rows.isdigit() and len(rows) <= 9):
            raise Problem(Kind.INVALID, "the number of rows is not a number", release=release)
        if seed and not (len(seed) == 64 and set(seed) <= set("0123456789abcdef")):
            raise Problem(Kind.INVALID, "a seed is 64 hexadecimal digits; leave it empty for a random one")
        publisher.resample(release, int(rows) if rows else None, seed or None, where or None)
        return see_other(f"{PATH}/{release}/samples")

    @routes.post("/releases/{release}/samples/delete")
    def delete(release: ReleaseId, form: Fields, caller: Sampler) -> Response:
        """Delete a sample. If it is deleted already, that is what was wanted."""
        if any(one.sample == form.one("sample") for one in store.samples(publisher.release(release).release)):
            publisher.delete_sample(release, form.one("sample"))
        return see_other(f"{PATH}/{release}/samples")

    @routes.get("/releases/{release}/samples/{sample}/data/{form}")
    def sample_data(release: ReleaseId, sample: ReleaseId, form: str, request: Request, caller: Reader) -> Response:
        """The rows of a sample."""
        found = publisher.sample(release, sample)
        where = partial(publisher.sample_file, sample)
        return content.send_rows(request, form, f"sample-{sample[:12]}", found.files, where)


def _add_files(routes: APIRouter, publisher: Publisher, reports: Reports) -> None:
    @routes.get("/releases/{release}/data/{form}")
    def data(release: ReleaseId, form: str, request: Request, caller: Reader) -> Response:
        """The synthetic rows."""
        found = publisher.release(release)
        where = partial(publisher.file, release)
        return content.send_rows(request, form, f"release-{release[:12]}", found.files, where)

    @routes.get("/releases/{release}/certificate")
    def certificate(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """The certificate, for the script that verifies it and for whoever wants to keep it."""
        text = canonical.dump(publisher.release(release).certificate.to_json())
        return content.send(request, text, content.entry_of(text), media_type=media.JSON)

    @routes.get("/releases/{release}/report")
    def report(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """The report as one file."""
        return reports.send(request, release)

    def opened(name: str, media_type: str, release: str, request: Request) -> Response:
        path, entry = publisher.opened(release, name)
        return content.send(request, path, entry, media_type=media_type)

    @routes.get("/releases/{release}/measurements")
    def measurements(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """The noisy counts, if the study publishes them."""
        return opened(MEASUREMENTS, media.JSON, release, request)

    @routes.get("/releases/{release}/transcript")
    def transcript(release: ReleaseId, request: Request, caller: Reader) -> Response:
        """The transcript, if the study publishes it."""
        return opened(TRANSCRIPT, media.NDJSON, release, request)


def around(release: Release) -> dict[str, Any]:
    """What every page of a release has."""
    return {
        "release": release,
        "manifest": release.certificate.manifest,
        "body": release.certificate.release.document,
        "here": f"{PATH}/{release.release}",
        "tabs": TABS,
    }


def page_of(request: Request) -> int:
    """The page of a long list that is asked for; the first for whatever is not a number."""
    given = request.query_params.get("page", "1")
    return max(1, int(given)) if given.isascii() and given.isdigit() and len(given) < 6 else 1


def number_of(text: str, below: int) -> int:
    """A position in a list. Raises a problem for anything else."""
    if text.isascii() and text.isdigit() and len(text) < 7 and int(text) < below:
        return int(text)
    raise Problem(Kind.INVALID, "the question names a column or a cell that this release does not have")


def conditions_of(
    names: Sequence[str], cells: dict[str, tuple[str, ...]], ticked: Sequence[str]
) -> dict[str, list[str]]:
    """By column, the names of the cells that are ticked, from texts such as 3.1."""
    found: dict[str, list[str]] = {}
    for one in ticked:
        column, _, cell = one.partition(".")
        name = names[number_of(column, len(names))]
        found.setdefault(name, []).append(cells[name][number_of(cell, len(cells[name]))])
    return found


def _question(where: dict[str, list[str]], groups: Sequence[str]) -> str:
    parts = [f"{name} {' or '.join(values)}" for name, values in where.items()]
    persons = f"Persons with {', and '.join(parts)}" if parts else "All persons"
    return f"{persons}, by {' and '.join(groups)}" if groups else persons
