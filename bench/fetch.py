"""The benchmarks' tables from their public homes: downloaded, brought into our form, checked, then put in place."""

from __future__ import annotations

import csv
import hashlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import httpx

SCHEMAS = Path(__file__).resolve().parent / "schemas"
_GITHUB = "https://raw.githubusercontent.com"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_AUTHORS = f"{_GITHUB}/sikhapentyala/MPC_SDG/6bd6903e1ffc69862892de9361ef3e64b787c836/private-pgm-master/data"
_INSTEAD = "put it into a folder and set CAPS_DATA to that"
Rows = Iterable[list[str]]


@dataclass(frozen=True)
class Table:
    """A table: its columns, where it is published, how the files there become rows, and the checksum of our form."""

    columns: str
    urls: tuple[str, ...]
    rows: Callable[..., Rows]
    sha256: str


def fetch(name: str, folder: Path, *, transport: httpx.BaseTransport | None = None) -> None:
    """Have `NAME.csv` in the folder, with the schemas beside it. What fails its check is not kept."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        content = _checked(name, transport)
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        try:
            partial.write_bytes(content)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    for schema in SCHEMAS.glob("*.schema.json"):
        shutil.copyfile(schema, folder / schema.name)


def _checked(name: str, transport: httpx.BaseTransport | None) -> bytes:
    table = TABLES.get(name)
    if table is None:
        raise SystemExit(f"{name}.csv is not available for download; {_INSTEAD}")
    content = _converted(name, table, [_download(name, url, transport) for url in table.urls])
    found = hashlib.sha256(content).hexdigest()
    if found != table.sha256:
        raise _unknown(name, table, f"its SHA-256 is {found}, not {table.sha256}")
    return content


def _download(name: str, url: str, transport: httpx.BaseTransport | None) -> str:
    try:
        with httpx.Client(transport=transport, timeout=60, follow_redirects=True) as client:
            return client.get(url).raise_for_status().text
    except httpx.HTTPError as error:
        reason = str(error).partition("\n")[0]
        raise SystemExit(f"{name}.csv cannot be downloaded from {url}: {reason}; {_INSTEAD}") from error


def _converted(name: str, table: Table, texts: list[str]) -> bytes:
    try:
        lines = [table.columns, *(",".join(row) for row in table.rows(*texts))]
    except (ValueError, LookupError, csv.Error) as error:  # a page that says sorry, say
        raise _unknown(name, table, f"it cannot be read: {error}") from error
    return ("\n".join(lines) + "\n").encode()


def _unknown(name: str, table: Table, reason: str) -> SystemExit:
    return SystemExit(f"{name}.csv as published at {', '.join(table.urls)} is not the table we know: {reason}")


def _cells(text: str, quote: str = '"') -> Rows:
    return csv.reader(StringIO(text, newline=""), quotechar=quote)


def _breast_cancer(text: str) -> Rows:
    """The label comes first, as at UCI; `nan` is UCI's `?`."""
    for *values, label in _cells(text, "'"):
        yield [label, *("?" if value == "nan" else value for value in values)]


def _diabetes(text: str) -> Rows:
    """No zeros at the end of the two columns with fractions."""
    for row in _cells(text):
        yield [*row[:5], *(str(float(value)) for value in row[5:7]), *row[7:]]


def _adult(train: str, test: str) -> Rows:
    """Both parts; in the second the first line is a remark, and labels end with a full stop."""
    for line in (*train.splitlines(), *test.splitlines()):
        if line and not line.startswith("|"):
            yield [value.strip() for value in line.removesuffix(".").split(",")]


def _compas_caps(scores: str, train: str, test: str) -> Rows:
    """ProPublica's rows, by the numbers that the paper's authors kept beside their codes."""
    head, *persons = _cells(scores)
    places = [head.index(column) for column in _COMPAS_CAPS.split(",")]  # two names come twice there: the first counts
    for line in (*train.splitlines()[1:], *test.splitlines()[1:]):
        person = persons[int(line.partition(",")[0])]
        yield [person[place] for place in places]


_COMPAS_CAPS = "juv_fel_count,juv_misd_count,juv_other_count,priors_count,sex,age,c_charge_degree,race,two_year_recid"
TABLES = {
    "adult": Table(
        "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
        "capital-loss,hours-per-week,native-country,income",
        (f"{_UCI}/adult/adult.data", f"{_UCI}/adult/adult.test"),
        _adult,
        "6f8f2babc5ee744afd03f6d978d8d6b3e3b0aae240d931c4976a9cce7af0d347",
    ),
    "breast-cancer": Table(
        "class,age,menopause,tumor-size,inv-nodes,node-caps,deg-malig,breast,breast-quad,irradiat",
        (f"{_GITHUB}/jbrownlee/Datasets/master/breast-cancer.csv",),
        _breast_cancer,
        "e4034edab5b18bf5f84d5cdfb82b65465e452b578349b0a62dc0678d55af9a3d",
    ),
    "compas-caps": Table(
        _COMPAS_CAPS,
        (
            f"{_GITHUB}/propublica/compas-analysis/master/compas-scores-two-years.csv",
            f"{_AUTHORS}/compass_processed_train.csv",
            f"{_AUTHORS}/compass_processed_test.csv",
        ),
        _compas_caps,
        "d826afceba4275fad722375a0a60e0143edf13ea87a95fd1180d77b45d055573",
    ),
    "diabetes": Table(
        "Pregnancies,Glucose,BloodPressure,SkinThickness,Insulin,BMI,DiabetesPedigreeFunction,Age,Outcome",
        (f"{_GITHUB}/jbrownlee/Datasets/master/pima-indians-diabetes.data.csv",),
        _diabetes,
        "c980e5e01dc1c554a358102b773f34b29599d0051ec5cf5b56ad1c6fcb3a23b0",
    ),
}
