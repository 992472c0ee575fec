"""The notebooks' form: executed, clean, in their places; and their exercises, with solutions and with mistakes.

What they print is compared by nbval (`make notebooks`). To execute one again and keep its outputs:

    .venv/bin/python scripts/execute_notebooks.py notebooks/00_map.ipynb

A new notebook: NN_title.ipynb with the title and question of its `Lesson`, its solutions in notebooks/solutions/NN_title.py,
at least one plausible mistake per exercise in MISTAKES below, and its link in README and in 00_map.ipynb.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

from mxfp8fa.studies.course import LESSONS, course_table  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_LINES, MAX_COLUMNS = 30, 120

# Notebook -> exercise -> answers that its checker must refuse: expressions in the namespace of the exercises.
MISTAKES = {
    "00_map": {
        "before": ["lambda number: list(LESSONS[number].needs)", "lambda number: list(range(number))"],
        "halved_share": ["lambda ratio: ratio - 1", "lambda ratio: 1 - 1 / ratio"],
        "kind_of": ['lambda sentence: "emulated"'],
    },
    "01_mxfp8_numbers": {
        "value_of": [
            # the NaN codes taken for 480, and subnormals with a hidden 1
            "lambda c: (-1.0 if c & 128 else 1.0) * (2.0 ** ((c >> 3 & 15) - 7) * (1 + (c & 7) / 8) if c >> 3 & 15"
            " else 2.0**-6 * (c & 7) / 8)",
            "lambda c: (-1.0 if c & 128 else 1.0) * 2.0 ** ((c >> 3 & 15) - 7) * (1 + (c & 7) / 8)",
        ],
        "rceil": [
            "lambda bits: max((bits >> 23) - 8 + ((bits & 0x7FFFFF) >= 0x600000), 0) if bits >> 23 < 255 else 255",
            "lambda bits: max((bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000), 0)",
            "lambda bits: (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000) if bits >> 23 < 255 else 255",
        ],
        "dequantize": [
            'lambda code, scale: decode_scalar(code, "e4m3") * (2.0 ** (scale - 127) if scale else 0.0)',
            'lambda code, scale: decode_scalar(code, "e4m3") * 2.0 ** (scale - 127)',
        ],
        "safe_ratio": ["lambda: 448 * 2**6", "lambda: 2**13"],
    },
    "02_block_scaled_attention": {
        "blocked_axis": ["lambda einsum: einsum[0]", "lambda einsum: einsum[1]"],
        "direct_code": [
            "lambda log2_p: max(round(8 * (log2_p + 8 + 7)), 0)",
            "lambda log2_p: round(8 * (log2_p + 8 + 7 - 0.05))",
        ],
        "step": [
            "lambda m, l, s: (max(m, *s), l + sum(2.0 ** (x - max(m, *s)) for x in s))",
            "lambda m, l, s: (max(s), l * 2.0 ** (m - max(s)) + sum(2.0 ** (x - max(s)) for x in s))",
        ],
        "largest_threshold": ["lambda p_offset: 4.0", "lambda p_offset: 8 - p_offset"],
    },
    "03_a_blackwell_sm_in_python": {
        "address": [
            "lambda base, warp, column: base + (32 * warp << 16) + column",
            "lambda base, warp, column: base + column",
        ],
        "side_by_side": [
            "lambda start: MatrixDescriptor(start, 256, 128, NONE)",
            "lambda start: MatrixDescriptor(start, 16, 256, NONE)",
        ],
        "scale_place": [
            "lambda row, block: (row // 4, row % 4, block)",
            "lambda row, block: (row % 32, block, row // 32)",
        ],
        "barrier_after": [
            # the tx-count forgotten, and a phase that completes without its arrivals
            "lambda count, events: (lambda n: (n // count % 2, count - n % count, 0))"
            "(sum(k for name, k in events if name == 'arrive'))",
            "lambda count, events: (sum(name == 'complete_tx' for name, _ in events) % 2, count, 0)",
        ],
    },
    "04_seeing_a_pipeline": {
        "fence_in_store": [
            # the fence for another memory, and the one for another kind of write
            """lambda: ('cute.arch.fence_proxy("async.global")', 'tile[thread] = cutlass.Float32(thread)')""",
            "lambda: ('cute.arch.mbarrier_init_fence()', 'tile[thread] = cutlass.Float32(thread)')",
        ],
        "fence_in_announce": [
            "lambda: ('cute.arch.mbarrier_init_fence()', 'cute.arch.sync_threads()')",
            "lambda: ('cute.arch.fence_view_async_tmem_store()', 'cute.arch.mbarrier_init(full, 1)')",
        ],
        "fence_in_tensor": [
            "lambda: ('cute.arch.fence_view_async_tmem_store()', 'cute.copy(load_op, load.partition_S(cells), again)')",
            "lambda: ('cute.arch.fence_view_async_tmem_load()', 'cute.copy(store_op, values, mine)')",
        ],
    },
    "05_one_mma": {
        "instruction_descriptor": [
            "lambda m, n: 1 << 4 | 1 << 7 | 1 << 10 | n // 8 << 17 | m // 8 << 24",
            "lambda m, n: 1 << 7 | 1 << 10 | n // 8 << 17 | m // 16 << 24",
        ],
        "swizzled": [
            # the XOR on the offset in the tile instead of the address, and no swizzle
            "lambda start, row, byte: start + ((row * 128 + byte) ^ (row % 8 << 4))",
            "lambda start, row, byte: start + row * 128 + byte",
        ],
        "parities": [
            "lambda k, stages: (k % 2, (k + 1) % 2)",
            "lambda k, stages: (k // stages % 2, k // stages % 2)",
        ],
        "cell": [
            "lambda t, r: (t // 4 + 8 * (r % 2), 2 * (t % 4) + r // 2)",
            "lambda t, r: (t, r)",
        ],
    },
    "06_scale_factors_in_tmem": {
        "byte_of": [
            "lambda row, block, k: row * k // 32 + block",
            "lambda row, block, k: 512 * (row // 128 + block // 4 * 3) + row % 32 * 16 + row % 128 // 32 * 4 + block % 4",
        ],
        "places": [
            "lambda row, block, c: [(row % 32 + 32 * i, c + block, row // 32) for i in range(4)]",
            "lambda row, block, c: [(row, c + row // 32, block)]",
        ],
        "scale_ids": ["lambda word: (word >> 4 & 3, word >> 29 & 3)", "lambda word: (word >> 30, word >> 4 & 3)"],
        "packed_bytes": ["lambda rows, k: rows * k // 32", "lambda rows, k: 512 * (rows // 128) * (k // 128)"],
    },
    "07_online_quantization": {
        "e5m2_scale": ["lambda bits: max((bits + 0x1FFFFF >> 23) - 8, 0)", "lambda bits: (bits + 0x1FFFFF >> 23) - 15"],
        "reciprocal_bits": ["lambda code: 127 - code << 23", "lambda code: 254 - code"],
        "rows_of": [
            "lambda thread: [thread] * 4",
            "lambda thread: [4 * (thread % 32) + column for column in range(4)]",
        ],
        "vanishes": ["lambda: 2.0**-10", "lambda: 2.0**-17"],
    },
    "08_from_a_tile_to_a_loop": {
        "barrier_and_parity": ["lambda i, stages: (i % stages, i % 2)", "lambda i, stages: (i % stages, i // stages)"],
        "lazy_max": [
            "lambda m, new, threshold=0.8: (max(m, new), 2.0 ** (m - max(m, new)))",
            "lambda m, new, threshold=0.8: (new, 2.0 ** (m - new)) if abs(new - m) > threshold else (m, 1.0)",
        ],
        "visit": ["lambda j, n: (j, min(n - 128 * j, 128))", "lambda j, n: (n // 128 - j, n % 128 if j == 0 else 128)"],
        "must_be_over": ["lambda j, stages: j - 1 if j else 'none'", "lambda j, stages: j - stages"],
    },
    "09_the_tmem_bargain": {
        "scale_columns": ["lambda k: k // 32", "lambda k: k // 128 * 4"],
        "free_columns": [
            "lambda head_dim, keys, q_tiles: 512 - keys - q_tiles * head_dim",
            "lambda head_dim, keys, q_tiles: 512 - 2 * (keys + head_dim)",
        ],
        "order": [
            # blind to the border, and without turns
            'lambda n, steps, interleave: ["S0", "S1"] + (n * steps - 1) * ["S0", "O0", "S1", "O1"] + ["O0", "O1"]',
            'lambda n, steps, interleave: n * steps * ["S0", "S1", "O0", "O1"]',
        ],
    },
    "10_where_the_cycles_go": {
        "step_cycles": ["lambda per_score, lanes: 128 * 128 * per_score / lanes", "lambda per_score, lanes: per_score / lanes"],
        "mufu_share": ["lambda cycles: 16 * cycles / 32768", "lambda cycles: min(cycles / 1024, 1)"],
        "half_bits": ["lambda code: code << 8", "lambda code: code"],
        "largest_code": ["lambda p_offset, threshold: 8 * (p_offset + 7)", "lambda p_offset, threshold: 126"],
    },
    "11_producers": {
        "pass_bytes": ["lambda elements, read_bytes: elements * (read_bytes + 1)", "lambda elements, read_bytes: elements * 3"],
        "break_even": ["lambda saved, cost, seqlen: seqlen * saved / cost", "lambda saved, cost, seqlen: seqlen"],
        "scale_byte": ["lambda token, block: 4 * token + block", "lambda token, block: 16 * (token % 32) + token // 32 + block"],
    },
    "12_speedups": {
        "petaflops": [
            "lambda cycles, ghz: 148 * 128 * 128 * 4 * 128 / cycles * ghz / 1e6",
            "lambda cycles, ghz: 148 * 2 * 128 * 128 * 4 * 128 / cycles / ghz / 1e6",
        ],
        "clock_ghz": ["lambda cycles, us: cycles / us / 1000", "lambda cycles, us: cycles / (us + 3) / 1000"],
        "useful_share": [
            "lambda tile, step, steps: step / (tile + step)",
            "lambda tile, step, steps: 1 - tile / (steps * step)",
        ],
        "gain": ["lambda a, b, chain: 2.0", "lambda a, b, chain: (a + chain) / (a / 2 + chain)"],
    },
    "13_backward": {
        "word": [
            # the blocks of the other product, and bytes in reverse
            "lambda product, row: [4 * (row // 32) + i if product == 'dQ' else 4 * i + row // 32 for i in range(4)]",
            "lambda product, row: [4 * (row // 32) + i for i in range(4)]",
        ],
        "visited": [
            "lambda kv_tile, seqlen_q, seqlen_k: -(-seqlen_q // 128) - kv_tile",
            "lambda kv_tile, seqlen_q, seqlen_k: -(-seqlen_q // 128)",
        ],
        "factor_log2": [
            "lambda do_norm, v_norm, k_max: math.floor(math.log2(65504 / (do_norm * v_norm * k_max)))",
            "lambda do_norm, v_norm, k_max: round(math.log2(65504 / (2 * do_norm * v_norm * k_max)))",
        ],
    },
    "14_jagged": {
        "first_atoms": [
            # atoms shared by sequences, and one for an empty sequence
            "lambda lengths: [sum(lengths[:i]) // 128 for i in range(len(lengths))]",
            "lambda lengths: [sum(n // 128 + 1 for n in lengths[:i]) for i in range(len(lengths))]",
        ],
        "coordinates": [
            # blind to the end, and a map that ends with the tensor
            "lambda i, start, length, tokens: (tokens - length + i, start + length)",
            "lambda i, start, length, tokens: (start + i, tokens) if start + i < tokens else None",
        ],
        "number": ["lambda turn, cta, ctas: turn * ctas + cta", "lambda turn, cta, ctas: (turn + 1) * ctas - 1 - cta"],
    },
    "15_does_it_train": {
        "relative_error": ["lambda db: 10 ** (-db / 10)", "lambda db: 1 - db / 20"],
        "hidden_up_to": ["lambda noise, rounding: noise / rounding", "lambda noise, rounding: (rounding / noise) ** 2"],
        "module_gain": ["lambda attention, faster: 1 + attention * (faster - 1)", "lambda attention, faster: faster"],
    },
}


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def markdown(path):
    return "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def tagged(cell, tag):
    return tag in cell.metadata.get("tags", ())


def text_of(output):
    """Everything an output says in words."""
    data = output.get("data", {})
    return output.get("text", "") + "".join(str(v) for k, v in data.items() if k.startswith("text/"))


def lesson_of(path):
    return LESSONS[int(path.name[:2])]


per_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3
    assert len({path.name[:2] for path in NOTEBOOKS}) == len(NOTEBOOKS), "two notebooks with one number"


@per_notebook
def test_it_was_executed_from_top_to_bottom_without_complaint(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run all cells of a new kernel"
    for cell in cells:
        names = [output.name for output in cell.outputs if output.output_type == "stream"]
        assert set(names) <= {"stdout"}, f"cell {cell.id} writes to stderr"
        assert len(names) == len(set(names)), f"cell {cell.id}: one stream in pieces; see the top of this file"
        assert not any(output.output_type == "error" for output in cell.outputs), cell.id
        assert "execution" not in cell.metadata, f"cell {cell.id} holds times; see the top of this file"


@per_notebook
def test_it_names_no_place_and_no_time_of_this_machine(path):
    forbidden = re.compile(
        r"(?<![\w.<])/(home|root|tmp|usr|opt|var|mnt|Users)/|[A-Z]:\\|ipykernel_|Wall time|CPU times"
    )
    for cell in read(path).cells:
        for text in [cell.source, *(text_of(output) for output in cell.get("outputs", []))]:
            assert not forbidden.search(text) and str(ROOT) not in text, f"cell {cell.id}: {forbidden.search(text)}"


@per_notebook
def test_it_has_the_parts_of_a_lesson_in_order(path):
    lesson, text = lesson_of(path), markdown(path)
    assert text.startswith(f"# {lesson.number:02d} {lesson.title}\n\n*{lesson.question}*\n\n")
    parts = ["**You need**", "**You will be able to**", "## Summary", "## Exercises", "**Next:**"]
    places = [text.find(part) for part in parts]
    assert -1 not in places, f"missing: {[part for part, place in zip(parts, places, strict=True) if place < 0]}"
    assert places == sorted(places)


@per_notebook
def test_it_ends_with_a_link_to_the_next_one(path):
    later = [other.name for other in NOTEBOOKS if other.name[:2] == f"{int(path.name[:2]) + 1:02d}"]
    ending = read(path).cells[-1].source
    assert "**Next:**" in ending
    assert all(f"]({name})" in ending for name in later), f"{path.name} does not link {later}"


@per_notebook
def test_its_cells_are_short_and_its_figures_shown(path):
    for cell in code_cells(path):
        lines = cell.source.splitlines()
        assert len(lines) <= MAX_LINES, f"cell {cell.id} has {len(lines)} lines; move code into the package"
        assert max(map(len, lines)) <= MAX_COLUMNS, f"cell {cell.id}: a line is too long"
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            assert lines[-1] == "plt.show()", f"cell {cell.id}: a figure's cell ends with plt.show()"
        assert not any("image/svg+xml" in output.get("data", {}) for output in cell.outputs), cell.id


@per_notebook
def test_what_it_shows_is_pinned_by_an_assert(path):
    """In the cell itself, or in the one beside it that shows the same data as a table or a figure."""
    cells = [cell for cell in code_cells(path) if not cell.metadata.get("tags")]
    pinned = [bool(re.search(r"^\s*assert ", cell.source, re.MULTILINE)) for cell in cells]
    for i, cell in enumerate(cells):
        if cell.outputs:
            assert any(pinned[max(i - 1, 0) : i + 2]), f"cell {cell.id} and its neighbours assert nothing"
    assert sum(pinned) >= 0.7 * sum(bool(cell.outputs) for cell in cells)


@per_notebook
def test_its_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", markdown(path)):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{path.name} links {target}"


def test_the_course_is_listed_alike_in_readme_and_map():
    present = {int(path.name[:2]): path.name for path in NOTEBOOKS}
    in_readme, in_map = course_table(present, "notebooks/"), course_table(present)
    assert in_readme in (ROOT / "README.md").read_text(), f"README's course table should be:\n{in_readme}"
    assert in_map in markdown(FOLDER / "00_map.ipynb"), f"the table of 00_map.ipynb should be:\n{in_map}"


def exercises(path):
    """(name of the function, stub, checker) of every exercise, after checking that they follow each other."""
    cells, found = code_cells(path), []
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        if tagged(cell, "exercise"):
            (name,) = re.findall(r"^def (\w+)\(", cell.source, re.MULTILINE)
            assert after is not None and tagged(after, "check"), f"no checker after {name}"
            found.append((name, cell, after))
    assert len(found) == sum(tagged(cell, "check") for cell in cells)
    return found


def namespace(path):
    """Names that the exercises have: their imports and nothing else of the notebook."""
    names = {}
    for cell in code_cells(path):
        if tagged(cell, "exercise-imports"):
            exec(cell.source, names)
    return names


def printed(source, names):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source, names)
    return out.getvalue()


@per_notebook
def test_exercises_are_stubs_that_say_what_and_how_long(path):
    found = exercises(path)
    assert 2 <= len(found) <= 5
    for name, stub, checker in found:
        assert stub.source.rstrip().endswith('"""\n    ...'), f"{name} is a docstring and a hole"
        assert re.search(r"\b(line|lines|entries)\b", stub.source), f"{name} says how long its hole is"
        names = namespace(path)
        exec(stub.source, names)
        assert printed(checker.source, names) == "not attempted\n", name
        assert [text_of(output) for output in checker.outputs] == ["not attempted\n"], f"{name}: commit the stub"


@per_notebook
def test_solutions_are_accepted(path):
    solutions = {}
    exec((FOLDER / "solutions" / f"{path.stem}.py").read_text(), solutions)
    for name, _, checker in exercises(path):
        reply = printed(checker.source, namespace(path) | {name: solutions[name]})
        assert re.fullmatch(r"ok, \d+ cases?\n", reply), f"{name}: {reply}"


@per_notebook
def test_mistakes_are_refused(path):
    for name, _, checker in exercises(path):
        mistakes = MISTAKES.get(path.stem, {}).get(name, [])
        assert mistakes, f"add a plausible mistake for {name} to MISTAKES"
        for mistake in mistakes:
            names = namespace(path)
            names[name] = eval(mistake, names)
            assert printed(checker.source, names).startswith("first mismatch: "), f"{name} accepts {mistake}"


def test_there_are_no_solutions_without_exercises():
    assert {path.stem for path in (FOLDER / "solutions").glob("*.py")} == {path.stem for path in NOTEBOOKS}
