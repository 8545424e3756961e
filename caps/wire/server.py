"""An MPC server's REST interface: what its routes return beside the documents that it signs."""

from __future__ import annotations

from typing import Literal

from caps.basics.document import Document
from caps.wire.documents import Approval, Seal, Signed


class StudyState(Document):
    """How far a study is on one server. An approval stands for good; shares are there until the state is `erased`."""

    study: str
    state: Literal["judged", "approved", "sealed", "erased"]
    approval: Signed[Approval] | None = None
    seal: Signed[Seal] | None = None
