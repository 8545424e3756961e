"""How good synthetic rows are: classifiers trained on them, tested on real ones. Not private: for benchmarks only."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from caps.data.domain import Codes, Domain

LABELS = {
    "breast-cancer.caps": "class",
    "compas-caps": "two_year_recid",
    "diabetes.caps": "Outcome",
    "adult": "income",
}
METRICS = ("lr_auc", "rf_auc", "lr_f1", "rf_f1", "error")
TREES = 100


def classifier_scores(domain: Domain, label: str, synthetic: Codes, test: Codes) -> dict[str, float]:
    """AUC and macro F1 of logistic regression (one-hot) and random forests (codes), tested on real rows."""
    from sklearn.ensemble import RandomForestClassifier  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.metrics import f1_score, roc_auc_score  # type: ignore[import-untyped]

    column = domain.names.index(label)
    features = [name for name in domain.names if name != label]
    others = [domain.names.index(name) for name in features]
    sizes = [domain.sizes[i] for i in others]
    truth = test[:, column]
    scores: dict[str, float] = {}
    for name, model, prepare in (
        ("lr", LogisticRegression(max_iter=2000), _one_hot),
        ("rf", RandomForestClassifier(TREES, random_state=0), _as_they_are),
    ):
        learnt = synthetic[:, column]
        if len(np.unique(learnt)) < 2:
            likely = np.full(len(truth), float(learnt[0]) if len(learnt) else 0.0)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(prepare(synthetic[:, others], sizes), learnt)
            likely = model.predict_proba(prepare(test[:, others], sizes))[:, 1]
        scores[f"{name}_auc"] = float(roc_auc_score(truth, likely))
        scores[f"{name}_f1"] = float(f1_score(truth, likely > 0.5, average="macro"))
    return scores


def _one_hot(codes: Codes, sizes: Sequence[int]) -> npt.NDArray[np.float64]:
    blocks = [codes[:, [i]] == np.arange(size) for i, size in enumerate(sizes)]
    return np.concatenate(blocks, axis=1).astype(np.float64)


def _as_they_are(codes: Codes, sizes: Sequence[int]) -> npt.NDArray[np.float64]:
    return codes.astype(np.float64)
