from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsprof.analysis.rank.group_by import group_rows

ROWS = st.lists(st.tuples(st.integers(-(2**40), 2**40), st.integers(0, 3), st.booleans()))


@given(ROWS)
def test_groups_are_the_distinct_rows(rows):
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(3)]
    groups = group_rows(columns)
    found = {rows[first]: count for first, count in zip(groups.first, groups.counts(), strict=True)}
    assert found == Counter(rows)


@given(st.lists(st.sampled_from([3, 4, 7]), min_size=5))
def test_few_distinct_rows_are_grouped_in_their_order(column):
    groups = group_rows([np.array(column, np.int64)])
    _, first, of_row = np.unique(column, return_index=True, return_inverse=True)
    assert groups.first.tolist() == first.tolist()
    assert groups.of_row.tolist() == of_row.tolist()


def test_sums_are_by_group():
    groups = group_rows([np.array([7, 7, 9])])
    assert groups.sums(np.array([1, 2, 40])).tolist() == [3, 40]


def test_columns_that_multiply_beyond_64_bits_keep_their_groups():
    wide = np.array([-(2**40), 0, 2**40, 0], np.int64)
    assert len(group_rows([wide, wide, wide])) == 3


def test_intervals_of_a_group_that_overlap_count_once():
    groups = group_rows([np.array([7, 8, 7, 7, 8])])
    starts, ends = np.array([0, 0, 5, 30, 50]), np.array([10, 10, 20, 30, 60])
    assert groups.unions(starts, ends).tolist() == [20, 20]


def test_columns_over_all_64_bits_keep_their_groups():
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    column = np.array([least, most, 0, most], np.int64)
    assert len(group_rows([column])) == 3
    assert len(group_rows([column, column])) == 3


def test_sums_beyond_64_bits_end_at_a_limit():
    values = np.full(4, 2**62, np.int64)
    groups = group_rows([np.array([1, 1, 1, 2])])
    assert groups.sums(values).tolist() == [2**62, 2**62]
    assert groups.sums(-values).tolist() == [-(2**62), -(2**62)]
