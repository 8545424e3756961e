"""Further tables for the suite: which there are, and their bins and categories."""

import numpy as np
import pytest

from bench import tables, tables_tasks

pandas = pytest.importorskip("pandas")


def test_every_table_has_one_half_and_a_source():
    assert sorted(tables.LOOKED_AT + tables.UNSEEN) == sorted(tables_tasks.TABLES)
    assert not set(tables.LOOKED_AT) & set(tables.UNSEEN)


def test_called_without_a_folder_it_says_what_it_is_for(capsys):
    assert tables.main([]) == 2
    assert "FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [0.001, 1.0, 37.0, 1e6])
def test_edges_are_round_and_cover_nearly_everybody(scale):
    values = scale * np.random.default_rng(1).exponential(1, 5000)
    edges = tables_tasks.round_edges(values)
    widths = np.diff(edges)
    assert 5 <= len(widths) <= 16
    assert widths == pytest.approx(np.full(len(widths), widths[0]), rel=1e-6)
    assert any(np.isclose(float(f"{widths[0]:e}".split("e")[0]), one) for one in (1, 2, 2.5, 5))
    assert np.mean((values >= edges[0]) & (values < edges[-1])) > 0.985


def test_categories_keep_their_order_and_what_is_missing_comes_last():
    factor = pandas.Series(pandas.Categorical(["much", None, "little"], ["little", "much"], ordered=True))
    assert tables_tasks.coded(factor) == (["little", "much", "NA"], ["much", "NA", "little"])
    assert tables_tasks.coded(pandas.Series(["b", "a", "b"])) == (["a", "b"], ["b", "a", "b"])
    numbers = pandas.Series([*np.linspace(0, 90, 91), np.nan])
    categories, values = tables_tasks.coded(numbers)
    assert categories == [*(str(one) for one in range(len(categories) - 1)), "NA"]
    assert (values[0], values[90], values[91]) == ("0", categories[-2], "NA")
