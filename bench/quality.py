"""How good synthetic rows are, beside the real ones. Not private: for benchmarks only.

Of marginals: half the L1 distance of normalised ones, for pairs and for triples of attributes. Of associations: the
difference of Cramer's V, corrected for the bias of few rows (Bergsma 2013). Of classifiers: trained on synthetic rows,
tested on real ones. Of the whole: how well a random forest tells rows that it has not seen, real from synthetic.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.datasets import Dataset, Label
from caps.basics.uniform import Uniform
from caps.data.domain import MISSING, Clique, Codes, Domain

METRICS = ("lr_auc", "rf_auc", "lr_f1", "rf_f1", "error")
"""What the paper reports."""
CLASSIFIERS = METRICS[:-1]
ERRORS = ("pair", "worst_pair", "triple", "correlation", "worst_correlation", "propensity")
ALL = (*ERRORS, *CLASSIFIERS)
"""Of ERRORS less is better, of CLASSIFIERS more."""
TREES = 100
MOST_TRIPLES = 200
MOST_TOLD_APART = 5000
"""Real rows, and as many synthetic ones, that a forest is to tell apart."""
Floats = npt.NDArray[np.float64]


def all_scores(dataset: Dataset, synthetic: Codes) -> dict[str, float]:
    """Everything in ALL; no classifiers if the table has no label."""
    domain, real = dataset.domain, dataset.codes[dataset.train]
    pairs = _distances(domain, real, synthetic, combinations(domain.names, 2))
    differences = np.abs(_associations(domain, real) - _associations(domain, synthetic))
    found = {
        "pair": float(pairs.mean()),
        "worst_pair": float(pairs.max()),
        "triple": float(_distances(domain, real, synthetic, triples(domain)).mean()),
        "correlation": float(differences.mean()),
        "worst_correlation": float(differences.max()),
        "propensity": propensity(domain, real, synthetic),
    }
    if dataset.label is None:
        return found
    return found | classifier_scores(domain, dataset.label, synthetic, dataset.codes[dataset.test])


def triples(domain: Domain) -> tuple[Clique, ...]:
    """All triples, or those MOST_TRIPLES whose names have the smallest hashes."""
    every = combinations(domain.names, 3)
    return tuple(sorted(every, key=lambda names: hashlib.sha256("\0".join(names).encode()).digest())[:MOST_TRIPLES])


def _distances(domain: Domain, real: Codes, synthetic: Codes, cliques: Iterable[Clique]) -> Floats:
    return np.array(
        [0.5 * np.abs(_share(domain, real, one) - _share(domain, synthetic, one)).sum() for one in cliques], np.float64
    )


def _share(domain: Domain, codes: Codes, clique: Clique) -> Floats:
    """A normalised marginal; rows that lack one of its values do not count."""
    columns, shape = codes[:, [domain.position(name) for name in clique]], domain.shape(clique)
    known = columns[(columns != MISSING).all(axis=1)]
    cells = np.bincount(np.ravel_multi_index(tuple(known.T), shape), minlength=int(np.prod(shape)))
    return cells.reshape(shape) / max(len(known), 1)


def _associations(domain: Domain, codes: Codes) -> Floats:
    """Cramer's V of every pair of attributes, corrected for bias; 0 where a column has one value only."""
    return np.array([cramers_v(_share(domain, codes, pair), len(codes)) for pair in combinations(domain.names, 2)])


def cramers_v(shares: Floats, rows: int) -> float:
    """Corrected for bias as Bergsma (2013) does. `shares`: of a table of two attributes, which sum to 1."""
    table = shares[shares.sum(axis=1) > 0][:, shares.sum(axis=0) > 0]
    r, c = table.shape
    if min(r, c) < 2 or rows < 2:
        return 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0))
    phi = max(0.0, float(((table - expected) ** 2 / expected).sum()) - (r - 1) * (c - 1) / (rows - 1))
    smaller = min(size - (size - 1) ** 2 / (rows - 1) for size in (r, c)) - 1
    return float(np.sqrt(phi / smaller)) if smaller > 0 else 0.0


def propensity(domain: Domain, real: Codes, synthetic: Codes) -> float:
    """The AUC of a random forest that tells real rows from synthetic ones, on the half it was not trained on.

    0.5: they cannot be told apart; 1: always. Both sides have equally many rows, chosen by a fixed seed.
    """
    from sklearn.ensemble import RandomForestClassifier  # type: ignore[import-untyped]
    from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]

    count = min(len(real), len(synthetic), MOST_TOLD_APART)
    if count < 4:
        return 1.0
    uniform = Uniform("propensity")
    sides = [codes[uniform.permutation(len(codes))[:count]] for codes in (real, synthetic)]
    half = count // 2
    seen = np.concatenate([side[:half] for side in sides])
    model = RandomForestClassifier(TREES, min_samples_leaf=5, random_state=0)
    model.fit(seen, np.repeat([0, 1], half))
    unseen = np.concatenate([side[half:] for side in sides])
    return float(roc_auc_score(np.repeat([0, 1], count - half), model.predict_proba(unseen)[:, 1]))


def classifier_scores(domain: Domain, label: Label | None, synthetic: Codes, test: Codes) -> dict[str, float]:
    """AUC and macro F1 of logistic regression (one-hot) and random forests (codes), tested on real rows."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.metrics import f1_score, roc_auc_score

    if label is None:
        raise ValueError("a table without a label has nothing to classify")
    column, positive = domain.position(label.column), sorted(label.positive)
    others = [i for i in range(len(domain.names)) if i != column]
    sizes = [domain.sizes[i] for i in others]
    truth, learnt = (np.isin(codes[:, column], positive).astype(np.int64) for codes in (test, synthetic))
    scores: dict[str, float] = {}
    models: tuple[tuple[str, Any, Any], ...] = (
        ("lr", LogisticRegression(max_iter=2000), _one_hot),
        ("rf", RandomForestClassifier(TREES, random_state=0), _as_they_are),
    )
    for name, model, prepare in models:
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


def _one_hot(codes: Codes, sizes: Sequence[int]) -> Floats:
    blocks = [codes[:, [i]] == np.arange(size) for i, size in enumerate(sizes)]
    return np.concatenate(blocks, axis=1).astype(np.float64)


def _as_they_are(codes: Codes, sizes: Sequence[int]) -> Floats:
    return codes.astype(np.float64)
