"""The dry run: exactly what would leave the site. That depends on the manifest only, not on the table's content."""

from __future__ import annotations

from caps.data.linkage import ELEMENT_BYTES, TAG_BYTES
from caps.service.site import Site
from caps.study import Holder, Manifest
from caps.wire import Contribution, Signed
from caps.wire.holder import ComponentPreview, Part, Preview, ServerPreview, StudyLoss, statement_of
from services.holder.matching import joins_by_tags
from services.holder.sharing import Secrets, offer, stated

JOINED_BY_TAGS = (
    "Before that, every server receives one blinded element for each row, padding included. It is uniformly random, "
    "whatever the row contains. S1 then receives one tag for each row. A person has the same tag at every holder; "
    "computing it takes all three servers."
)


def preview(site: Site, manifest: Manifest, holder: Holder, loss: StudyLoss, *, loaded: bool) -> Preview:
    """The dry run of one holder. Its offers are built with blanks in place of secrets, and measured."""
    form = manifest.form_of(holder)
    by_tags = joins_by_tags(manifest, holder)
    asked = (holder.capacity or 0) if by_tags else 0
    scheme = manifest.sharing
    blank = Secrets(scheme, (bytes(32),) * len(scheme.seeded), (bytes(32),) * scheme.components)
    statement = stated(form, manifest.study_id, site.name, ("0" * 64,) * scheme.components, site.instant())
    signed = Signed[Contribution].by(statement, site.name, site.signing_key)
    servers = []
    for party, server in enumerate(manifest.servers):
        components = [
            ComponentPreview(
                component=component,
                kind="seed" if component in scheme.seeded else "vector",
                bytes=32 if component in scheme.seeded else form.bytes,
            )
            for component in scheme.held[party]
        ]
        offered = len(offer(signed, blank, party).model_dump_json().encode())
        vector = form.bytes if scheme.vector in scheme.held[party] else 0
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
        loss=loss,
        statement=f"{JOINED_BY_TAGS} {statement_of(scheme)}" if by_tags else statement_of(scheme),
    )
