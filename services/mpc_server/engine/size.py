"""The sizes that costs are formulas of, each with what it counts."""

from __future__ import annotations

from services.mpc_server.engine.cost import Size

elements = Size("elements", "elements of the arrays worked on, or of the result where inputs are summed")
ring_bits = Size("ring_bits", "bits of the ring that elements are in")
target_bits = Size("target_bits", "bits of the larger ring that elements are lifted to")
width = Size("width", "bits of an element")
block = Size("block", "bits of an element that are worked on together")
fraction_bits = Size("fraction_bits", "fractional bits of fixed-point numbers")
dropped_bits = Size("dropped_bits", "bits that a truncation drops")
degree = Size("degree", "degree of a polynomial, or attributes of the largest marginal")

rows = Size("rows", "rows of a matrix or a table")
columns = Size("columns", "columns of a matrix or a table")
row_bytes = Size("row_bytes", "bytes of a row")
sums = Size("sums", "segments that are summed, one number each")
queries = Size("queries", "queries that a selection chooses from")

index_bits = Size("index_bits", "bits of an index into an alias table")
digits = Size("digits", "digits that a geometric variable is drawn in")
terms = Size("terms", "draws that a wide Gaussian is the weighted sum of")
free_bits = Size("free_bits", "bits that a Gumbel variable draws within its cell, and masks")

word_bits = Size("word_bits", "bits of the words that one-hot columns are held in")
cells = Size("cells", "cells of the layout that is counted")
paired_columns = Size("paired_columns", "columns of attributes that are in a marginal of two")
pair_cells = Size("pair_cells", "cells of marginals of two attributes")
crossed_cells = Size("crossed_cells", "cells of marginals of three or more attributes")
product_columns = Size("product_columns", "columns that are products of others")
pool_columns = Size("pool_columns", "one-hot columns and products together")
levels = Size("levels", "levels in which product columns are made")
column_inputs = Size("column_inputs", "contributions of columns, or of tables to join")
lower_columns = Size("lower_columns", "columns of lower precedence")
most_holders = Size("most_holders", "the most holders of one attribute")
marginal_inputs = Size("marginal_inputs", "contributions of marginals")
marginal_cells = Size("marginal_cells", "cells of all contributions of marginals")
count_bits = Size("count_bits", "bits that a contributed count may have")
combinations = Size("combinations", "random sums that are opened for each contribution of marginals")
tests = Size("tests", "comparisons of a row with categories")

tables = Size("tables", "tables that are joined")
table_rows = Size("table_rows", "rows of all accepted tables, dummies included")
table_bytes = Size("table_bytes", "bytes of these rows")
ordered_bytes = Size("ordered_bytes", "bytes of planes of all tables' rows except the first")
sets = Size("sets", "sets of two or more tables")
dummies = Size("dummies", "dummies for each set")
copies = Size("copies", "tables beyond the first of all sets, which receive the set's dummies too")
joint_rows = Size("joint_rows", "aligned rows")
groups = Size("groups", "groups of joint rows that are counted together")
expand_rounds = Size("expand_rounds", "rounds before groups are counted, of all groups")
row_blocks = Size("row_blocks", "blocks of rows in which product columns are made, of all groups")
and_bytes = Size("and_bytes", "bytes of the ANDs that expand codes")
plane_bytes = Size("plane_bytes", "bytes of planes of expanded columns")
merged = Size("merged", "elements of blocks that are merged into others")
code_bits = Size("code_bits", "bits of the largest code")
and_planes = Size("and_planes", "planes of ANDs that a bilinear function sums up")
and_elements = Size("and_elements", "elements of these planes")
ands = Size("ands", "ANDs of all one-hot circuits of a row")

EVERY = tuple(value for value in list(globals().values()) if isinstance(value, Size))
"""All of them, in this order."""
