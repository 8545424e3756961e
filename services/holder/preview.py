"""The dry run: exactly what would leave the site. It follows from the manifest, whatever the table holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from caps.service.site import Site
from caps.study import Holder, Manifest
from caps.wire import Contribution, Signed
from services.holder.matching import ELEMENT_BYTES, TAG_BYTES, joins_by_tags
from services.holder.sharing import Secrets, offer, stated

STATEMENT = (
    "Each server receives two of three components. Every two of them are independent, uniformly random words, whatever "
    "the table holds; all three add up to the values shared. One server alone learns nothing of them, two together "
    "learn all. No row, no count and no value leaves the site in the clear."
)
JOINED_BY_TAGS = (
    "Before that, every server receives one blinded element for each row, padding included: uniformly random, "
    "whatever the row is. S1 then receives one tag for each: the same for the same person at every holder, and "
    "computed with all three servers' help."
)
PUBLIC = (
    "the study's manifest: schema, workload, privacy, parties",
    "this holder's name, keys and address on the network",
    "that it approved and contributed, and when",
    "sizes of the messages, which follow from the manifest alone",
)


class Part(BaseModel):
    """A marginal, by its attributes, or the block of one column; cells: how many counts, or one-hot columns, it has."""

    attributes: list[str]
    cells: int


class ComponentPreview(BaseModel):
    """One of the three components, as a server receives it."""

    component: int
    kind: Literal["seed", "vector"]
    bytes: int


class ServerPreview(BaseModel):
    """What one server would receive: bodies of requests, without the overhead of HTTP and TLS."""

    server: str
    url: str
    components: list[ComponentPreview]
    elements: int
    """Blinded elements, of 32 bytes, where rows are joined by tags."""
    tags: int
    """Of 16 bytes; to S1 alone."""
    offer_bytes: int
    vector_bytes: int
    chunks: int
    total_bytes: int


class Preview(BaseModel):
    """What would leave the site. The numbers of a table play no part in any size."""

    study: str
    holder: str
    loaded: bool
    form: str
    bits: int
    shape: list[int]
    parts: list[Part]
    servers: list[ServerPreview]
    total_bytes: int
    views: list[str]
    """What the guarantee covers, of what is published and of what each party sees; and what it does not."""
    statement: str = STATEMENT
    public: list[str] = list(PUBLIC)


def preview(site: Site, manifest: Manifest, holder: Holder, *, loaded: bool) -> Preview:
    """The dry run of one holder; its offers are made, with blanks for secrets, and measured."""
    form = manifest.form_of(holder)
    by_tags = joins_by_tags(manifest, holder)
    asked = (holder.capacity or 0) if by_tags else 0
    blank = Secrets((bytes(32), bytes(32)), (bytes(32), bytes(32), bytes(32)))
    statement = stated(form, manifest.study_id, site.name, ("0" * 64,) * 3, site.instant())
    signed = Signed[Contribution].by(statement, site.name, site.signing_key)
    servers = []
    for party, server in enumerate(manifest.servers):
        components = [
            ComponentPreview(
                component=component,
                kind="seed" if component < 2 else "vector",
                bytes=32 if component < 2 else form.bytes,
            )
            for component in (party, (party + 1) % 3)
        ]
        offered = len(offer(signed, blank, party).model_dump_json().encode())
        vector = form.bytes if party > 0 else 0
        tags = asked if party == 0 else 0
        servers.append(
            ServerPreview(
                server=server.name,
                url=server.url,
                components=components,
                elements=asked,
                tags=tags,
                offer_bytes=offered,
                vector_bytes=vector,
                chunks=statement.chunks if vector else 0,
                total_bytes=offered + vector + asked * ELEMENT_BYTES + tags * TAG_BYTES,
            )
        )
    if form.form == "marginals":
        layout = manifest.layout
        parts = [Part(attributes=list(c), cells=n) for c, n in zip(layout.cliques, layout.sizes, strict=True)]
    else:
        domain = manifest.columns_of(holder).domain()
        parts = [Part(attributes=[one.name], cells=one.size) for one in domain.attributes]
    return Preview(
        study=manifest.study_id,
        holder=site.name,
        loaded=loaded,
        form=form.form,
        bits=form.bits,
        shape=list(form.shape),
        parts=parts,
        servers=servers,
        total_bytes=sum(server.total_bytes for server in servers),
        views=list(manifest.views),
        statement=f"{JOINED_BY_TAGS} {STATEMENT}" if by_tags else STATEMENT,
    )
