"""How `caps preview` shows what would leave the site: the essentials first, then the details."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from caps.cli.output import facts, heading, listing, short

if TYPE_CHECKING:
    from caps.wire.holder import Loss, Preview


def preview_views(preview: "Preview", *, full: bool) -> Iterator[Any]:
    """What leaves, to whom, what it costs the persons. With `full`, every part and component."""
    from caps.study.memory import size_shown

    shape = " x ".join(f"{extent:,}" for extent in preview.shape)
    yield facts(
        {
            "study": short(preview.study),
            "table": _table(preview),
            "leaves": f"{size_shown(preview.total_bytes)} of random-looking words to {len(preview.servers)} servers",
            "contains": f"shares of {preview.form}, {shape}, in {preview.bits} bits each",
        }
    )
    yield ""
    rows = [
        {
            "server": one.server,
            "address": one.url,
            "gets": " + ".join(f"{part.kind} {size_shown(part.bytes)}" for part in one.components),
            "in_all": size_shown(one.total_bytes),
        }
        for one in preview.servers
    ]
    yield listing(rows, ("server", "address", "gets", "in_all"), right=("in_all",))
    yield ""
    yield preview.statement
    yield ""
    before, after = preview.loss.before, preview.loss.after
    yield heading(f"What it costs persons of {preview.loss.population}")
    yield facts({"so far": "nothing" if before is None else _cost(before), "with this study": _cost(after)})
    yield from (f"WARNING: {words}" for words in preview.loss.warnings)
    yield ""
    yield heading("Who sees what")
    yield from (f"- {words}" for words in preview.views)
    if not full:
        yield ""
        also = f"{len(preview.queries)} queries to the source, " if preview.queries else ""
        yield f"{len(preview.parts)} parts of the table, every component, {also}and what is public anyway: --full"
        return
    if preview.queries:
        yield ""
        yield heading("What the source is asked: its answers stay here, and leave in shares only")
        yield from (f"{query};\n" for query in preview.queries)
    yield ""
    parts = [{"part": " x ".join(one.attributes), "cells": one.cells} for one in preview.parts]
    yield listing(parts, ("part", "cells"), right=("cells",))
    yield ""
    yield heading("Public anyway")
    yield from (f"- {words}" for words in preview.public)


def _table(preview: "Preview") -> str:
    if not preview.loaded:
        return "NOT LOADED YET: caps table put"
    return "loaded" if preview.source is None else f"in source {preview.source}, which is read where it is"


def _cost(loss: "Loss") -> str:
    studies = "1 study" if loss.studies == 1 else f"{loss.studies} studies"
    if loss.epsilon is None:
        return f"{studies}: nothing can be promised any more"
    return f"epsilon {loss.epsilon:.3g} at delta {loss.delta:.3g}, by {studies}"
