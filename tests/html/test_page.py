"""The page in a browser: every view of every kind of capture, and what one does in them."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
import pytest

from cgtool.analysis.graph.overlap import find_overlap
from cgtool.analysis.graph.schedule import critical_path
from cgtool.analysis.graph.select import parse, select
from cgtool.analysis.graph.summary import summarize
from cgtool.analysis.ledger_report import ledger_report
from cgtool.analysis.pools import pool_rows
from cgtool.analysis.timing.bench import bench_report
from cgtool.analysis.timing.profile import profile_report
from cgtool.analysis.units import bytes_text, rate_text, time_text
from cgtool.html.report import html
from cgtool.model.capture import Graph, Memory, Node, Origin, TensorValues
from cgtool.model.capture_file import read
from cgtool.model.failure import CgtoolError
from tests.browser import find_browser
from tests.builders import capture as capture_of
from tests.builders import chain, hostile, huge, nested, serving, small, timed, unusual
from tests.forked_workers import run_cgtool
from tests.html.opened import Page, evil, opened_browser
from tests.html.pictures import ELSEWHERE, check_picture, difference
from tests.recorded import recorded

pytestmark = pytest.mark.browser
SAMPLES = sorted((Path(__file__).parents[2] / "samples" / "captures").glob("*.cgt"))
SCRIPT = (
    "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>\u202e\x1b\x00"
)


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def transformer(browser, tmp_path_factory):
    """The report of a profiled capture, opened once."""
    page = Page(browser)
    file = tmp_path_factory.mktemp("report") / "transformer.html"
    file.write_bytes(html([("transformer.cgt", recorded("profile-transformer"))]))
    page.open(file)
    yield page
    assert page.errors == []


@pytest.fixture(scope="module")
def reader(browser):
    """One page for all other reports: a new one takes half a second."""
    return Page(browser)


@pytest.fixture
def opened(reader, tmp_path):
    """Open the report of captures."""
    files = []

    def open_(*captures):
        files.append(tmp_path / f"{len(files)}.html")
        files[-1].write_bytes(html([(f"{at}.cgt", each) for at, each in enumerate(captures)]))
        reader.open(files[-1])
        return reader

    yield open_
    assert reader.errors == []


def test_every_view_of_every_sample_opens(opened):
    for file in SAMPLES:
        page = opened(read(file))
        assert {"answer", "graph"} <= set(page.views)
        for view in page.views:
            page.show(view)
        page("state.selectNode(state.capture.count - 1)")
        assert page("document.querySelector('aside').hidden") is False


@pytest.mark.parametrize(
    "capture",
    [
        capture_of([]), timed(small()), unusual(), nested(), hostile(), serving(),
        evil(timed(small()), SCRIPT), evil(serving(), SCRIPT),
    ],
    ids=["empty", "small", "unusual", "nested", "hostile", "program", "evil", "evil program"],
)  # fmt: skip
def test_every_view_of_unusual_captures_opens_and_runs_nothing(opened, capture):
    page = opened(capture)
    for view in page.views:
        page.show(view)
        page("for (let node = 0; node < state.capture.count; node++) state.selectNode(node)")
        page("state.select([...Array(state.capture.count).keys()], 'all')")
        page("state.clear()")
    assert page("window.ran") is None
    assert page("document.querySelectorAll('img, iframe, object').length") == 0


def with_values(capture):
    """The capture with values of its first nodes: a NaN, an infinity, and plain numbers."""
    tensor = TensorValues("out", "float32", (2, 4), -3.0, 2.5, 0.25, 7.0, digest=1)
    seen = [
        msgspec.structs.replace(tensor, nans=2, first=(0, 1)),
        msgspec.structs.replace(tensor, infinities=1, first=(1, 3)),
        tensor,
    ]
    graph = capture.graphs[0]
    nodes = [
        msgspec.structs.replace(node, values=(seen[at],)) if at < len(seen) else node
        for at, node in enumerate(graph.nodes)
    ]
    graph = msgspec.structs.replace(graph, nodes=tuple(nodes))
    return msgspec.structs.replace(capture, graphs=(graph, *capture.graphs[1:]))


def test_values_are_beside_their_nodes(opened):
    page = opened(with_values(small()))
    page.show("graph")
    # The canvas draws its marks in colors that it looks up.
    assert page("theme.bad") and page("theme.warn")
    page("state.selectNode(0)")
    assert "2 NaN, first at [0, 1], least -3, largest 2.5" in page.page.inner_text("aside .bad")
    legend = page.page.inner_text("main")
    assert "writes NaN" in legend
    assert "writes infinities" in legend
    page.show("tables")
    heads = page.page.locator("main th:visible").all_inner_texts()
    assert {"least", "largest", "NaN", "infinite"} <= {head.split(" ")[0] for head in heads}


def test_the_first_sentence_is_that_of_profile(transformer):
    page = transformer
    page.show("answer")
    assert page.page.inner_text(".sentence").startswith("A CUDA graph makes this 4.7x faster")
    assert "concurrency-lost-or-false-dependency" in page.page.inner_text("main")


def drawn_texts(page, canvas):
    """The texts that a canvas shows, in the order in which they are drawn."""
    return page(
        """(canvas) => {
      const {plot} = document.querySelector(canvas);
      const texts = [];
      plot.context.fillText = (text) => texts.push(text);
      plot.paint();
      delete plot.context.fillText;
      return texts;
    }""",
        canvas,
    )


def test_the_first_screen_has_eager_and_replay_to_one_scale(opened):
    capture = recorded("profile-transformer")
    page = opened(capture)
    (row,) = [row for row in bench_report(capture).rows if row.phase == "both"]
    rows = page("""picturesOf(state.capture)[0].rows.map(({name, layout}) => {
      const times = layout.nodes().map((node) => [layout.start(node), layout.stop(node)]);
      return [name, layout.length, times];
    })""")
    assert [name for name, *_ in rows] == ["eager", "replay"]
    nodes = [node for graph in capture.graphs for node in graph.nodes]
    for (_, length, times), total in zip(rows, (row.eager_ns, row.replay_ns), strict=True):
        assert length == pytest.approx(total, rel=1e-6)
        assert max(stop for _, stop in times) <= length * 1.000001
        # A node takes what was measured; only the time between nodes differs. (Medians of starts
        # may overlap by a few nanoseconds.)
        took = [stop - start for start, stop in times]
        assert took == pytest.approx([node.duration_ns for node in nodes], rel=0.3)
        assert sum(took) == pytest.approx(sum(node.duration_ns for node in nodes), rel=0.01)
    texts = drawn_texts(page, "[data-view=answer] canvas")
    assert {"eager", "replay", "layers.0", "layers.3"} <= set(texts)
    assert f"{time_text(row.eager_ns)} per iteration, GPU idle 80%" in texts
    assert "was not measured" in page.page.inner_text(".picture")
    memory = drawn_texts(page, "[data-view=answer] .plot-host:nth-of-type(2) canvas")
    assert memory[0] == "memory"


def test_modules_have_one_color_in_time_and_in_memory(opened):
    page = opened(recorded("profile-transformer"))
    legend = page.page.locator("[data-view=answer] .legend .name").all_inner_texts()
    assert {f"layers.{at}" for at in range(4)} | {"head", "norm"} <= set(legend)
    # A click on a band selects its module; one on memory leads there.
    x, y = page("""(() => {
      const plot = document.querySelector("[data-view=answer] canvas").plot;
      return [plot.px(picturesOf(state.capture)[0].rows[0].layout.start(60)), RULER + HEAD + 4];
    })()""")
    box = page.page.locator("[data-view=answer] canvas").first.bounding_box()
    page.page.mouse.click(box["x"] + x + 40, box["y"] + y)
    assert page("state.label") in legend
    page.page.locator("[data-view=answer] canvas").last.click()
    assert page("state.view") == "memory"


def test_workspaces_of_cublas_are_of_no_module(opened):
    """The module that is the first to multiply does not own them."""
    capture = recorded("profile-transformer")
    page = opened(capture)
    blocks = [each for each in capture.memory.allocations if each.label == "cuBLAS workspace"]
    legend = page.page.locator("[data-view=answer] .legend .name").all_inner_texts()
    assert legend.count("cuBLAS workspace") == 1
    last = page("""(() => {
      const { blocks } = state.capture;
      const use = new MemoryUse(blocks, Array.from({ length: blocks.count }, (_, block) => block));
      use.color(coloringOfBlocks(coloring(state.capture, "module"), blocks));
      return use.stacks.at(-1).at(-1);
    })()""")
    assert last == sum(block.bytes for block in blocks) > 0
    for color in ("op", "module"):
        page(f"state.colorBy('{color}')")
        page.show("memory")
        page("page.opened.get('memory').view.choose(0)")
        rows = page("page.opened.get('memory').view.legendRows().map((row) => row.slice(1, 3))")
        at_first = [block.bytes for block in blocks if block.allocated_at == 0]
        assert dict(rows)["cuBLAS workspace"] == sum(at_first)
    page("state.colorBy('op')")


def test_many_layers_are_one_color_and_few_have_one_each(opened):
    """Of 24 equal layers, what is inside them is told apart."""
    page = opened(repeated(24))
    legend = page.page.locator("[data-view=answer] .legend .name").all_inner_texts()
    assert set(legend) == {"h.*.attn", "h.*.mlp", "head"}


def repeated(layers):
    """A capture of layers of an attention and an MLP, and a head: a node for each."""
    paths = [f"h.{at}.{part}" for at in range(layers) for part in ("attn", "mlp")] + ["head"]
    whole = small()
    origins = tuple(Origin("aten::mm", path, "Linear") for path in paths)
    nodes = tuple(Node(at, "kernel", origin=at) for at in range(len(paths)))
    graph = Graph("forward", "forward", nodes=nodes, edges=chain(len(nodes)))
    return msgspec.structs.replace(
        whole, graphs=(graph,), origins=origins, memory=Memory(), modules=()
    )


def test_what_was_not_timed_is_drawn_in_order(opened):
    page = opened(read(SAMPLES[0].with_name("mlp.cgt")))
    texts = drawn_texts(page, "[data-view=answer] canvas")
    assert {"forward", "backward", "12 nodes, in execution order (not timed)"} <= set(texts)
    assert not [text for text in texts if re.search(r"\d (ns|us|ms)", text)]


def test_a_bench_without_times_of_nodes_has_both_as_bars(opened):
    page = opened(read(SAMPLES[0].with_name("mlp-bench.cgt")))
    assert drawn_texts(page, "[data-view=answer] canvas")[-4:] == [
        "eager", "640 us per iteration", "replay", "73.2 us per iteration",
    ]  # fmt: skip
    assert "layers.0" in drawn_texts(page, "[data-view=answer] .plot-host:nth-of-type(2) canvas")


def test_the_memory_of_the_simulated_device_has_colors(opened, tmp_path):
    source = Path(__file__).parents[2] / "samples" / "mlp.py"
    done = run_cgtool(
        "capture", f"{source}:build", "--device", "simulated", "-o", "a.cgt", "-q", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    capture = read(tmp_path / "a.cgt")
    for block in capture.memory.allocations:
        assert capture.graphs[block.graph].nodes[block.node].origin == block.origin
    page = opened(capture)
    page.show("memory")
    legend = page.page.inner_text("[data-view=memory] .legend")
    assert "addmm" in legend
    assert "of no node" not in legend
    page.page.locator(".lists section button.link", has_text="addmm").first.click()
    assert page("state.capture.op(state.nodes[0])") == "addmm"


def test_a_short_graph_is_followed_by_the_list_of_its_nodes(opened):
    capture = recorded("profile-two_streams")
    page = opened(capture)
    page.show("graph")
    plot, table = (
        page.page.locator(f"[data-view=graph] {part}").bounding_box()
        for part in ("canvas", "table")
    )
    drawn = page("(({plot}) => plot.tall * plot.unit)(page.opened.get('graph').view)")
    assert drawn <= plot["height"] < 1.1 * drawn
    assert table["y"] < plot["y"] + plot["height"] + 80
    rows = page.page.locator("[data-view=graph] tbody tr")
    assert rows.count() == len(capture.graphs[0].nodes)
    rows.nth(2).locator("button").click()
    assert page("[...state.nodes]") == [2]
    assert page.page.locator("[data-view=graph] tr.marked").count() == 1


def test_a_run_begins_at_its_first_capture(opened):
    """This program imports for 85% of its time."""
    page = opened(read(Path(__file__).parents[1] / "gold" / "html" / "engine.cgt"))
    for view in ("answer", "run"):
        page.show(view)
        shown = page("""(view) => {
          const {plot} = document.querySelector(`[data-view=${view}] canvas`);
          const {entries} = state.capture.run;
          const from = Math.min(...entries.map(({began}) => began));
          const to = Math.max(...entries.map(({last}) => last));
          return [plot.px(from) / plot.width, plot.px(to) / plot.width];
        }""", view)  # fmt: skip
        assert shown == pytest.approx([0.05, 0.95], abs=0.01)
    page.page.click("text=Whole program")
    plot = "page.opened.get('run').view.plot"
    assert page(f"{plot}.x0 === {plot}.from && {plot}.x1 === {plot}.to")


@pytest.mark.parametrize("width", [1280, 390])
def test_no_code_is_cut(opened, width):
    page = opened(recorded("profile-transformer"))
    page.page.set_viewport_size({"width": width, "height": 800})
    page.show("source")
    page("state.selectNode(25)")
    page.page.wait_for_timeout(50)
    cut = page("""() => [...document.querySelectorAll(
      "pre.code, .scroll:has(table.source), .code-line")].filter(
        (each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1).length""")
    page.page.set_viewport_size({"width": 1280, "height": 800})
    assert cut == 0


def test_the_difference_names_the_modules_of_what_changed(opened):
    a = recorded("profile-transformer")
    page = opened(a, without(a, {11, 30}))
    page.show("difference")
    assert "removed 2 (layers.*.mlp.3 1, layers.*.mlp.0 1)" in page.page.inner_text(
        "[data-view=difference] .legend"
    ).replace("\n", " ")
    assert {"layers.0", "layers.3"} <= set(drawn_texts(page, "[data-view=difference] canvas"))


@pytest.mark.parametrize("width", [1280, 480])
def test_the_kinds_of_change_are_not_cut(opened, width):
    a = recorded("profile-transformer")
    paths = [f"decoder_of_many_words.blocks.{name}.projection" for name in "abcd"]
    moved = [
        msgspec.structs.replace(each, module=paths[at % 4]) for at, each in enumerate(a.origins)
    ]
    page = opened(
        *(msgspec.structs.replace(each, origins=tuple(moved)) for each in (a, without(a, {11, 30})))
    )
    page.page.set_viewport_size({"width": width, "height": 800})
    page.show("difference")
    cut = page("""() => [...document.querySelectorAll("[data-view=difference] .legend .entry")]
      .filter((each) => [each, ...each.children].some(
        (part) => part.scrollWidth > part.clientWidth + 1)).map((each) => each.textContent)""")
    page.page.set_viewport_size({"width": 1280, "height": 800})
    assert cut == []


def test_the_pictures_of_a_view_are_one_image(opened, tmp_path):
    page = opened(recorded("profile-transformer"))
    for view in page.views:
        page.show(view)
        has_picture = page("document.querySelector('.view:not([hidden]) canvas.plot') !== null")
        assert page("page.copy.hidden") is not has_picture
        if not has_picture:
            continue
        width, height, colors = page("""() => {
          const canvas = imageOf(page.host, document.title);
          const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return [canvas.width, canvas.height, new Set(new Uint32Array(data.buffer)).size];
        }""")
        assert width > 2000
        assert height > 600
        assert colors > 20
    page("void (navigator.clipboard.write = async ([item]) => (window.copied = item.types))")
    page.page.click("text=Copy image")
    page.page.wait_for_selector("text=Copied")
    assert page("window.copied") == ["image/png"]
    # A browser that gives the page no clipboard: the image becomes a file.
    page("void (navigator.clipboard.write = async () => { throw new Error(); })")
    with page.page.expect_download() as download:
        page("page.copyImage()")
    assert download.value.suggested_filename == "samples-transformer.py-build-memory.png"


def test_a_click_on_a_node_shows_it_with_its_lines(transformer):
    page = transformer
    page.show("graph")
    x, y = page("""(() => {
      const view = page.opened.get("graph").view;
      const [left, right, top] = view.spot(25);
      return [(left + right) / 2, top + 5];
    })()""")
    box = page.page.locator("[data-view=graph] canvas").bounding_box()
    page.page.mouse.click(box["x"] + x, box["y"] + y)
    assert page("[...state.nodes]") == [25]
    shown = page.page.inner_text("aside")
    capture = recorded("profile-transformer")
    assert "transformer.py:" in shown
    assert "def attend" in shown or "def forward" in shown
    assert f"node 25 of {capture.graphs[0].name}" in shown
    page.page.keyboard.press("ArrowRight")
    assert page("[...state.nodes]") == [26]
    page.page.keyboard.press("Escape")
    assert page("state.nodes.length") == 0


def test_bands_open_as_one_zooms_in(opened):
    page = opened(timed(huge(4000)))
    page.show("graph")
    open_bands = """(factor) => {
      const {view} = page.opened.get("graph");
      view.plot.zoom(factor, 300);
      const heights = view.lanes.bandHeights(view.visible()[0].lanes[0]);
      return heights.filter((height) => height > 8).length;
    }"""
    assert page(open_bands, 1) < page(open_bands, 0.01)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("mm", lambda origin: origin.op and "mm" in origin.op),
        ("module=layers.0", lambda origin: (origin.module or "").startswith("layers.0")),
        ("module=layers.*,op=mm", lambda origin: origin.op == "aten::mm" and origin.module),
        ("op!=mm|addmm", lambda origin: origin.op not in ("aten::mm", "aten::addmm")),
    ],
)  # fmt: skip
def test_search_selects_what_select_would(transformer, text, count):
    capture, page = recorded("profile-transformer"), transformer
    page.page.keyboard.press("/")
    page.page.fill("input[type=search]", text)
    page.page.keyboard.press("Enter")
    nodes = [node for graph in capture.graphs for node in graph.nodes]
    chosen = [at for at, node in enumerate(nodes) if count(capture.origins[node.origin])]
    if "layers.*" in text:
        chosen = [
            at for at in chosen if capture.origins[nodes[at].origin].module.startswith("layers.")
        ]
    if text == "mm":
        chosen = page("[...state.nodes]") if set(chosen) <= set(page("[...state.nodes]")) else []
        assert chosen
    assert page("[...state.nodes]") == chosen


SELECTIONS = (
    "module=layers.0", "module!=layers.*", "module=(root)", "module=(no module)",
    "module=layers.[01]", "op=aten::mm", "op=aten::sum", "op=sum.*",
    "op=mm|addmm, phase=backward", "op=[!a]*", "kernel=*gemm*", "type!=kernel", "line=30",
    "line=transformer.py:30-37", "file=samples/*", "stream=0", "stream=*stream*", "graph=forward",
    "annotation!=loss", "node=3-7", "node=3|5",
)  # fmt: skip


@pytest.mark.parametrize(
    "file", ["samples/captures/profile-transformer.cgt", "tests/gold/traces/compiled_blocks.cgt"]
)
def test_the_search_finds_what_select_finds(opened, file):
    capture = read(Path(__file__).parents[2] / file)
    page = opened(capture)
    starts = [0, *accumulate(len(graph.nodes) for graph in capture.graphs)]
    for text in SELECTIONS:
        selection = parse([text])
        views = [select(capture, at, selection) for at in range(len(capture.graphs))]
        nodes = {
            starts[view.graph] + node
            for view in views
            for item in view.items
            for node in item.members
        }
        assert page("(text) => findNodes(state.capture, text)", text) == sorted(nodes), text


@pytest.mark.parametrize("text", ["module=", "node=7-3", "line=abc", "layer=3"])
def test_the_search_refuses_what_select_refuses(transformer, text):
    with pytest.raises(CgtoolError):
        parse([text])
    transformer.page.fill("input[type=search]", text)
    shown = transformer.page.inner_text(".suggestions")
    transformer.page.fill("input[type=search]", "")
    assert shown != "No match"


def test_nothing_is_drawn_far_outside_the_view(opened):
    """The browser takes seconds to dash a line to a node that is millions of pixels away."""
    page = opened(timed(huge(20_000)))
    page.show("graph")
    page("state.selectNode(state.capture.count - 1)")
    farthest = page("""() => {
      const {plot} = page.opened.get("graph").view;
      let far = 0;
      const names = ["moveTo", "bezierCurveTo", "quadraticCurveTo", "strokeRect", "fillRect"];
      for (const name of names) {
        const draw = plot.context[name];
        plot.context[name] = (...at) => {
          far = Math.max(far, ...at.map(Math.abs));
          draw.apply(plot.context, at);
        };
      }
      plot.paint();
      return far;
    }""")
    counterpart = page("""() => {
      const {view} = page.opened.get("graph");
      return Math.abs(view.spot(state.capture.counterparts(state.lead)[0])[0]);
    }""")
    assert counterpart > 100_000
    assert farthest < 4000


def test_text_that_is_cut_stays_in_its_box(transformer):
    overlaps = transformer("""() => {
      const context = document.createElement("canvas").getContext("2d");
      context.font = `11px ${theme.font}`;
      let most = 0;
      context.fillText = (text, x) => (most = Math.max(most, x + context.measureText(text).width));
      const overlaps = [];
      for (const text of ["sm80_xmma_gemm_f32_nn_n", "reduce_kernel<128, 4>", "Wide first, iii"]) {
        for (let room = 20; room < 150; room++) {
          most = 0;
          drawText(context, text, 0, 0, room);
          if (most > room) overlaps.push([text, room, most]);
        }
      }
      return overlaps;
    }""")
    assert overlaps == []


def test_neighbors_are_told_apart(transformer):
    transformer.show("graph")
    transformer("state.selectNode(84)")
    nodes = [node for graph in recorded("profile-transformer").graphs for node in graph.nodes]
    boxes = transformer.page.locator("aside button.neighbor")
    for box, node in zip(boxes.all(), (nodes[83], nodes[85]), strict=True):
        assert box.inner_text().split("\n")[-1] == time_text(node.duration_ns)
        assert box.get_attribute("title").startswith(f"node {node.id}\n")
    boxes.first.focus()
    transformer.page.keyboard.press(" ")
    assert transformer("state.lead") == 83


def test_lists_of_memory_are_whole_beside_the_panel(transformer):
    transformer.show("memory")
    transformer("state.selectNode(84)")
    cut = transformer("""() => [...document.querySelectorAll(".lists section")].filter(
      (section) => section.scrollWidth > section.clientWidth + 1).length""")
    assert cut == 0


def test_the_legend_of_memory_begins_with_what_uses_most(opened):
    page = opened(read(SAMPLES[0].with_name("convnet.cgt")))
    page.show("memory")
    bytes_ = page("page.opened.get('memory').view.legendRows().filter((row) => row[3] !== null)"
                  ".map((row) => row[2])")  # fmt: skip
    assert bytes_ == sorted(bytes_, reverse=True)


def test_a_long_title_leaves_the_header_on_one_line(opened):
    page = opened(evil(timed(small()), "W" * 400))
    assert page("document.querySelector('header').clientHeight") < 50
    page.show("graph")
    widest = page("""() => {
      const {plot} = page.opened.get("graph").view;
      let most = 0;
      const { context } = plot;
      context.fillText = (text, x) => (most = Math.max(most, x + context.measureText(text).width));
      plot.paint();
      delete context.fillText;
      return [most, plot.width];
    }""")
    assert widest[0] <= widest[1]


def test_a_file_without_a_graph_says_so(opened):
    assert opened(capture_of([])).page.inner_text(".sentence") == "No graph was captured."


CONTRASTS = """() => {
  const dot = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
  const context = dot.getContext("2d", {willReadFrequently: true});
  const paint = (color) => {
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
  };
  const luminance = () => {
    const [red, green, blue] = [...context.getImageData(0, 0, 1, 1).data].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paintBehind = (element) => {
    if (element.parentElement) paintBehind(element.parentElement);
    paint(getComputedStyle(element).backgroundColor);
  };
  const low = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.getClientRects().length) continue;
    paintBehind(element);
    const behind = luminance();
    paint(getComputedStyle(element).color);
    const [dark, light] = [behind, luminance()].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) low.push([texts.currentNode.data, contrast]);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("capture", [recorded("profile-transformer"), serving()])
def test_all_text_has_enough_contrast(opened, capture, scheme):
    """4.5 to 1, as WCAG 2.2 requires for text of this size."""
    page = opened(capture)
    page.page.emulate_media(color_scheme=scheme)
    for view in page.views:
        page.show(view)
        page("state.selectNode(3)")
        assert page(CONTRASTS) == [], view
    page.page.emulate_media(color_scheme="light")


def test_paper_is_light(opened):
    page = opened(recorded("profile-transformer"))
    page.page.emulate_media(color_scheme="dark")
    page.show("graph")
    corner = """() => {
      const {canvas} = page.opened.get("graph").view.plot;
      const dot = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
      const context = dot.getContext("2d", {willReadFrequently: true});
      context.drawImage(canvas, canvas.width - 4, 4, 1, 1, 0, 0, 1, 1);
      return [...context.getImageData(0, 0, 1, 1).data];
    }"""
    is_dark = f"Math.max(...({corner})().slice(0, 3)) < 100"
    page.page.wait_for_function(is_dark)
    page("dispatchEvent(new Event('beforeprint'))")
    printed = page(corner)[:3]
    assert page("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page("dispatchEvent(new Event('afterprint'))")
    assert min(printed) > 200
    page.page.wait_for_function(is_dark)
    page.page.emulate_media(color_scheme="light")


def test_a_node_has_its_occupancy(transformer):
    capture = recorded("profile-transformer")
    nodes = [node for graph in capture.graphs for node in graph.nodes]
    kernel = nodes[84].kernel
    threads = kernel.active_blocks * kernel.block[0] * kernel.block[1] * kernel.block[2]
    transformer("state.selectNode(84)")
    share = threads / capture.environment.max_threads_per_multiprocessor
    text = f"{share:.0%} of the threads that a multiprocessor can hold"
    assert text in transformer.page.inner_text("aside")


def test_a_legend_says_of_what_its_shares_are(transformer):
    legend = "[data-view=%s] .legend"
    transformer.show("graph")
    assert transformer.page.inner_text(legend % "graph").startswith("Share of time:")
    transformer.show("memory")
    transformer("page.opened.get('memory').view.choose(108)")
    assert transformer.page.inner_text(legend % "memory").startswith("Share of bytes at event 108:")


def test_what_allocates_nothing_is_not_in_the_legend_of_memory(opened):
    page = opened(serving())
    page.show("memory")
    assert "sum" not in page.page.inner_text("[data-view=memory] .legend")


def test_the_findings_of_a_run_are_not_cut(opened):
    page = opened(serving())
    page.show("run")
    beyond = """Math.max(...[...document.querySelectorAll("[data-view=run] td:last-child")].map(
      (cell) => cell.getBoundingClientRect().right)) - innerWidth"""
    assert page(beyond) <= 0


def test_marks_of_the_graph_say_what_they_are(transformer):
    transformer("state.clear()")
    transformer.show("graph")
    legend = transformer.page.locator("[data-view=graph] .legend")
    toolbar = transformer.page.locator("[data-view=graph] .toolbar")
    for name in ("Critical path", "Dependencies"):
        toolbar.get_by_role("button", name=name, exact=True).click()
    text = legend.inner_text()
    # Every node of this capture waits for the one before.
    assert "Critical path: all 190 nodes." in text
    assert "zoom in" in text
    for name in ("Critical path", "Dependencies"):
        toolbar.get_by_role("button", name=name, exact=True).click()
    assert "Critical path" not in legend.inner_text()


def test_the_critical_path_is_counted_in_the_graphs_that_are_shown(opened):
    capture = recorded("profile-two_streams")
    page = opened(capture)
    page.show("graph")
    page.page.click("[data-view=graph] .toolbar >> text=Critical path")
    (path,) = [critical_path(capture, at) for at in range(len(capture.graphs))]
    text = f"Critical path: {len(path.nodes)} of 11 nodes; the others are pale."
    assert text in page.page.inner_text("[data-view=graph] .legend")


def test_a_false_dependency_is_explained_from_both_ends(transformer):
    edge = transformer("state.capture.unneeded")[0]
    for node in (edge["source"], edge["target"]):
        transformer(f"state.selectNode({node})")
        assert "False dependency (red)" in transformer.page.inner_text("aside")


def test_memory_says_what_an_event_is(transformer):
    transformer.show("memory")
    assert "An event is an allocation" in transformer.page.inner_text("[data-view=memory] .strip")


def test_dark_and_light(transformer):
    page = transformer
    background = "getComputedStyle(document.body).backgroundColor"
    light = page(background)
    page.page.click("button[aria-label='Light or dark']")
    assert page(background) != light


def test_browser_of_the_tests_is_found():
    assert shutil.which(find_browser())


def test_tables_are_sorted_by_their_headings(transformer):
    transformer("state.clear()")
    transformer.show("tables")
    page = transformer.page
    page.click("button[data-by=op]")
    shown = "[...document.querySelectorAll('[data-view=tables] tbody tr')].map((row) => row.cells"
    capture = recorded("profile-transformer")
    times, counts = Counter(), Counter()
    for node in (node for graph in capture.graphs for node in graph.nodes):
        op = capture.origins[node.origin].op.removeprefix("aten::").partition(".")[0]
        times[op] += node.duration_ns
        counts[op] += 1
    assert transformer(f"{shown}[0].innerText)") == [op for op, _ in times.most_common()]
    page.click("[data-view=tables] th >> text=nodes")
    by_count = sorted(counts.values(), reverse=True)
    assert transformer(f"{shown}[3].innerText)") == [str(count) for count in by_count]
    page.click("[data-view=tables] th >> text=nodes")
    assert transformer(f"{shown}[3].innerText)") == [str(count) for count in reversed(by_count)]
    rows = transformer("page.opened.get('tables').view.table.tabSeparated()").split("\n")
    assert len(rows) == 1 + len(times)


def test_a_module_of_the_tree_selects_all_inside_it(transformer):
    transformer.show("tables")
    transformer.page.click("button[data-by=module]")
    transformer.page.click("[data-view=tables] td >> text='2'")
    capture = recorded("profile-transformer")
    nodes = [node for graph in capture.graphs for node in graph.nodes]
    inside = [
        at
        for at, node in enumerate(nodes)
        if (capture.origins[node.origin].module or "").startswith("layers.2")
    ]
    assert transformer("[...state.nodes]") == inside


def test_the_source_has_its_time_beside_each_line(transformer):
    transformer.show("source")
    capture = recorded("profile-transformer")
    at_line = 0
    for node in (node for graph in capture.graphs for node in graph.nodes):
        origin = capture.origins[node.origin]
        origin = origin if origin.forward is None else capture.origins[origin.forward]
        if origin.frames and capture.frames[origin.frames[0]].line == 37:
            at_line += node.duration_ns
    cells = transformer.page.inner_text("tr[data-line='37']").split("\t")
    assert cells[:2] == [
        f"{at_line / 1e3:.0f} us",
        f"{at_line / profile_report(capture).total_ns:.0%}",
    ]
    assert cells[-1].strip() == "return x + self.mlp(self.mlp_norm(x))"


def test_shares_of_lines_are_those_of_all_nodes(opened):
    """In every view, though some nodes have no line."""
    capture = timed(small())
    first, *graphs = capture.graphs
    nodes = tuple(msgspec.structs.replace(node, origin=None) for node in first.nodes[:3])
    first = msgspec.structs.replace(first, nodes=(*nodes, *first.nodes[3:]))
    page = opened(msgspec.structs.replace(capture, graphs=(first, *graphs)))
    page.show("answer")
    by_line = page.page.locator("table.compact").first.inner_text()
    assert "(no line)" in by_line
    page.show("source")
    for row in page.page.locator("tr.used").all_inner_texts():
        assert row.split("\t")[1] in by_line


def test_where_the_system_chooses_the_colors_legends_and_choices_keep_theirs(browser, transformer):
    with browser.new_context(forced_colors="active") as context:
        page = context.new_page()
        page.goto(f"{transformer.url}#graph")
        page.wait_for_selector("html[data-ready]")
        page.click("text=Critical path")
        color = "(one) => getComputedStyle(document.querySelector(one))[%s]"
        swatches = page.evaluate(
            "[...document.querySelectorAll('.legend .swatch')].map((swatch) => "
            "getComputedStyle(swatch).backgroundColor)"
        )
        assert len(set(swatches)) == len(swatches) > 3
        for choice in ("button.toggle[aria-pressed=true]", "nav button[aria-selected=true]"):
            assert page.evaluate(color % "'outlineStyle'", choice) == "solid"
        assert (
            page.evaluate(color % "'outlineStyle'", "button.toggle[aria-pressed=false]") == "none"
        )


def test_a_share_is_rounded_to_all_or_nothing_only_if_it_is(transformer):
    shares = [0, 0.0004, 0.0996, 0.994, 0.9996, 1, 1 - 1e-12]
    assert transformer(f"{shares}.map(shareText)") == [
        "0%", "<0.1%", "10%", "99%", "99.9%", "100%", "100%"
    ]  # fmt: skip


def test_repeated_layers_are_one_and_different_modules_are_not(opened, transformer):
    names = transformer("page.captures[0].grouping('layer').names")
    assert {"layers.*", "layers.*.qkv", "layers.*.mlp.0", "layers.*.mlp.2"} <= set(names)
    # A model that is one nn.Sequential has nothing but numbers.
    types = ["Linear", "ReLU", "Linear"]
    origins = tuple(Origin("aten::x", f"{at}", type_) for at, type_ in enumerate(types))
    graph = Graph("g", "step", nodes=tuple(Node(at, "op", origin=at) for at in range(3)))
    page = opened(msgspec.structs.replace(capture_of([graph]), origins=origins))
    assert page("page.captures[0].grouping('layer').names") == ["0", "1", "2"]
    origins = tuple(msgspec.structs.replace(origin, module_type="Block") for origin in origins)
    page = opened(msgspec.structs.replace(capture_of([graph]), origins=origins))
    assert page("page.captures[0].grouping('layer').names") == ["*"]


def test_patterns_are_those_of_select(transformer):
    """And a long name does not stop the page, however many stars there are."""
    texts = ["", "a", "ab", "abc", "a.b", "a*b", "a]b", "[", "a\nb", "é🎉", "a" * 50 + "b"]
    patterns = [
        "", "*", "**", "a*", "*b", "a*b", "a?b", "?", "??", "é?", "*🎉", "[é][🎉]", "[ab]", "[!a]",
        "a[*]b", "a[]]b", "[", "a[", "*a*a*b", "*.*", "a[.]b", "[b-a]", "[a-c]*", "*[!b]", "^a",
        "a$", "\\", "*a*b*c*", "[^a]", "*\n*",
    ]  # fmt: skip
    for pattern in patterns:
        expected = [fnmatchcase(text, pattern) for text in texts]
        script = "([pattern, texts]) => texts.map(glob(pattern))"
        assert transformer(script, [pattern, texts]) == expected, pattern
    script = (
        "(pattern) => { const start = performance.now(); glob(pattern)('a'.repeat(4000)); "
        "return performance.now() - start; }"
    )
    assert transformer(script, "*a" * 30 + "*b") < 1000


def test_a_file_without_saved_source_is_shown_by_its_line_numbers(opened):
    page = opened(timed(small()))
    page.show("source")
    text = page.page.inner_text("[data-view=source]")
    assert "an older cgtool wrote this capture, without its source" in text
    assert page("[...document.querySelectorAll('tr.used')].map((row) => row.dataset.line)") == [
        "12", "13"
    ]  # fmt: skip


def test_every_fact_about_a_node_has_a_label(opened):
    """Pictures show the bytes of a copy or a fill, and the shape of an op, without one."""
    page = opened(unusual())
    labels = page("state.capture.launches.flatMap((rows) => rows.map(([label]) => label))")
    assert "bytes" in labels and "" not in labels


def test_numbers_are_written_as_tables_write_them(transformer):
    """Also those in the middle between two texts, and those that are rounded to the next unit."""
    draw = random.Random(0)
    values = [0, 1, 99.95, 999.46, 999.5, 999_460, 1023.6, 1024, 1048524, 12_250, 1125, 2.5, 1e15]
    values += [draw.randrange(1, 4000) * 10.0 ** draw.randrange(-1, 10) / 8 for _ in range(4000)]
    texts = {
        "timeText(x)": time_text,
        "bytesText(x)": bytes_text,
        "scaledText(x, 'FLOP')": lambda value: rate_text(value, "FLOP"),
    }
    for script, text in texts.items():
        shown = transformer(f"(values) => values.map((x) => {script})", values)
        assert shown == [text(value) for value in values]


def test_the_page_says_which_time_of_a_graph_is_which(transformer):
    report = profile_report(recorded("profile-transformer"))
    longer = ", ".join(f"{name} {share:+.1%}" for name, share in report.tracing_overhead)
    transformer("state.clear()")
    transformer.show("answer")
    answer = transformer.page.inner_text("[data-view=answer]")
    assert f"Graph draws those replays ({longer})" in answer
    transformer.show("graph")
    (head,) = transformer("""(() => {
      const view = page.opened.get('graph').view;
      const texts = [];
      const { context } = view.plot;
      context.fillText = (text) => texts.push(text);
      view.plot.paint();
      delete context.fillText;
      return texts.filter((text) => text.startsWith("140 nodes"));
    })()""")
    assert head == (
        "140 nodes, 646 us from first start to last end under the profiler; a replay without it "
        f"takes {time_text(report.replays[1].replay_ns)}"
    )


def test_memory_has_the_peak_of_pools_and_its_holders(transformer):
    transformer("state.clear()")
    transformer.show("memory")
    (pool,) = pool_rows(recorded("profile-transformer"))
    view = "page.opened.get('memory').view"
    assert transformer(f"{view}.use.most") == pool.peak_bytes
    assert transformer(f"{view}.use.at(1e9)") == pool.live_bytes
    peak, alive = transformer("[...document.querySelectorAll('.lists h2')].map((x) => x.innerText)")
    assert peak == f"In use at the peak: {bytes_text(pool.peak_bytes)}"
    assert alive == f"Live at the end: {bytes_text(pool.live_bytes)}"
    x, y, block = transformer(f"""(() => {{
      const view = {view};
      const {{from, to, at, bytes, last, node}} = state.capture.blocks;
      const block = view.members.reduce((a, b) => (bytes[b] > bytes[a] ? b : a));
      const end = to[block] < 0 ? last : to[block];
      return [view.plot.px((from[block] + end) / 2), view.y(at[block] + bytes[block] / 2), block];
    }})()""")
    box = transformer.page.locator("[data-view=memory] canvas").bounding_box()
    transformer.page.mouse.click(box["x"] + x, box["y"] + y)
    assert transformer("[...state.nodes]") == [transformer(f"state.capture.blocks.node[{block}]")]
    assert "cuBLAS workspace" in transformer.page.inner_text("aside")


def test_what_holds_the_memory_has_a_color(opened):
    """In the convnet these are workspaces, and an op that takes little time."""
    page = opened(read(SAMPLES[0].with_name("convnet.cgt")))
    legend = "[...document.querySelectorAll('[data-view=%s] .legend .entry')].map((entry) => "
    legend += "[entry.querySelector('.name').textContent, entry.firstChild.style.background])"
    page.show("graph")
    usual = dict(page(legend % "graph"))
    page.show("memory")
    colors = dict(page(legend % "memory"))
    assert colors.keys() - usual.keys() == {"cuBLAS workspace", "div"}
    assert len(set(colors.values())) == len(colors)
    for name in ("convolution_backward", "convolution", "relu"):
        assert colors[name] == usual[name]


def test_a_run_has_the_ledger_and_its_captures_in_time(opened):
    capture = serving()
    page = opened(capture)
    assert page.page.inner_text(".sentence").lower().startswith(
        ledger_report(capture).sentence.lower()
    )  # fmt: skip
    page.show("run")
    page.page.click("text=By graph")
    rows = page("[...document.querySelectorAll('[data-view=run] tbody tr')].length")
    assert rows == len(ledger_report(capture).graphs)
    x, y = page("""(() => {
      const {view} = page.opened.get("run");
      const at = view.run.entries.findIndex(({graph}) => graph === 3);
      const {began} = view.run.entries[at];
      return [view.plot.px(began) + 1, view.timeline.rows[at].y + 2];
    })()""")
    box = page.page.locator("[data-view=run] canvas").bounding_box()
    page.page.mouse.click(box["x"] + x, box["y"] + y)
    assert page("state.nodes.length") == len(capture.graphs[0].nodes)


def test_the_replays_of_a_run_are_drawn_where_they_were(opened):
    """By hand: 10 in 100 ns, none in 800 ns, 5 in 100 ns."""
    page = opened(serving())
    entry = {"first": 0, "last": 1000, "replays": 15, "moments": [[100, 10], [900, 10]]}
    shares = "(entry) => slicesOf(entry).map(({from, to, share}) => [from, to, share])"
    assert page(shares, entry) == [[0, 100, 1], [100, 900, 0], [900, 1000, 0.5]]
    assert page(shares, {**entry, "moments": []}) == [[0, 1000, None]]
    assert page(shares, {**entry, "first": None}) == []


def test_the_colors_of_a_run_are_printed_with_what_they_mean(opened):
    page = opened(serving())
    page.show("run")
    toolbar = page.page.locator("[data-view=run] .toolbar")
    page.page.emulate_media(media="print")
    shown = toolbar.inner_text().split("\n")
    page.page.emulate_media(media="null")
    assert {"replayed", "never replayed"} <= set(shown)
    assert "Fit" not in shown


def test_where_there_is_room_a_row_of_a_run_has_the_name_of_its_graph(opened):
    page = opened(serving())
    page.show("run")
    drawn = drawn_texts(page, "[data-view=run] canvas")
    assert {"graph 2", "graph 3"} <= set(drawn)
    # A capture that failed has no graph: only its lane has a name.
    assert drawn.count("Engine.capture model.py:13") == 1


def test_a_finding_of_a_run_leads_to_its_graphs(opened):
    page = opened(serving())
    finding = page.page.locator("article", has_text="graph-never-replayed").first
    finding.locator("button", has_text="in the run").click()
    assert page("state.view") == "run"
    assert page("page.opened.get('run').view.timeline.lit.size") == 2


GROWING = """
import torch, cgtool

pool = torch.cuda.graph_pool_handle()
kept = []
for size in (1 << 20, 1 << 16, 1 << 22):
    x = torch.zeros(size, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        kept.append((graph, x, x + 1))
cgtool.event("grown")
"""


def test_what_the_captures_of_a_run_have_added(opened, tmp_path):
    (tmp_path / "growing.py").write_text(GROWING)
    run_cgtool("run", "--device", "simulated", "-o", "run.cgt", "growing.py", cwd=tmp_path)
    capture = read(tmp_path / "run.cgt")
    rows = ledger_report(capture).graph_memory
    assert len(rows) == 3
    grown = [row.grown_bytes for row in rows]
    page = opened(capture)
    page.show("added")
    cells = "[...document.querySelectorAll('table.added tbody tr')].map((row) => row.innerText)"
    texts = [
        [bytes_text(row.grown_bytes), bytes_text(row.kept_bytes), bytes_text(total)]
        for row, total in zip(rows, accumulate(grown), strict=True)
    ]
    assert [row.split("\t")[-3:] for row in page(cells)] == texts
    bars = page("""[...document.querySelectorAll('.waterfall .part')].map(({style}) =>
        [style.left, style.width].map(parseFloat))""")
    total = sum(grown)
    assert bars == [
        pytest.approx([100 * sum(grown[:at]) / total, 100 * one / total], abs=1e-3)
        for at, one in enumerate(grown)
        if one
    ]
    page.page.click("table.added tbody tr:last-child button")
    assert page("state.nodes.length") == len(capture.graphs[-1].nodes)
    page.show("run")
    page("page.opened.get('run').view.plot.fit()")
    assert "grown" in drawn_texts(page, "[data-view=run] canvas")


def test_failed_captures_without_a_finding_are_listed(opened):
    capture = serving()
    *graphs, failed = capture.ledger.graphs
    failed = msgspec.structs.replace(failed, diagnosis=None, failure="ValueError: wrong shape")
    ledger = msgspec.structs.replace(capture.ledger, graphs=(*graphs, failed, failed))
    page = opened(msgspec.structs.replace(capture, ledger=ledger))
    section = page.page.locator("section", has_text="Failed captures").last
    assert section.inner_text().endswith(": ValueError: wrong shape (2 times)")


def without(capture, gone):
    """The capture without these nodes of its first graph, a chain."""
    graph = capture.graphs[0]
    kept = [node for node in graph.nodes if node.id not in gone]
    nodes = tuple(msgspec.structs.replace(node, id=at) for at, node in enumerate(kept))
    graphs = (
        msgspec.structs.replace(graph, nodes=nodes, edges=chain(len(nodes))),
        *capture.graphs[1:],
    )
    blocks = (msgspec.structs.replace(each, node=None) for each in capture.memory.allocations)
    memory = msgspec.structs.replace(capture.memory, allocations=tuple(blocks))
    return msgspec.structs.replace(capture, graphs=graphs, memory=memory)


def test_the_difference_says_which_nodes_are_gone(opened):
    a = recorded("profile-transformer")
    page = opened(a, without(a, {11, 30}))
    assert page.views[0] == "difference"
    page.show("difference")
    assert page.page.inner_text(".sentence").startswith("B has 2 fewer nodes")
    whole = sum(node.duration_ns for graph in a.graphs for node in graph.nodes)
    gone = sum(a.graphs[0].nodes[node].duration_ns for node in (11, 30))
    assert f"{gone / whole:.1%} less" in page.page.inner_text("[data-view=difference]")
    rows = page("[...page.difference.kind].map((kind, row) => [kind, page.difference.a[row]])")
    assert [node for kind, node in rows if kind == 3] == [11, 30]
    assert len([node for kind, node in rows if kind == 0]) == 188
    # A row of the table selects its nodes, in the capture that has them.
    page.page.click("[data-view=difference] tbody tr:has-text('native_dropout') button.link")
    assert page("[...state.nodes]") == [11]
    assert page("state.capture.number") == 0
    for view in page.views:
        page.show(view)
    page.page.click("header .choice >> text=B")
    assert page("[state.capture.number, state.nodes.length]") == [1, 0]
    for view in page.views:
        page.show(view)
    page("state.selectNode(5)")


def test_a_timed_capture_and_one_without_times_are_both_drawn_in_order(opened):
    page = opened(recorded("profile-transformer"), read(SAMPLES[0].with_name("transformer.cgt")))
    lengths = "page.opened.get('difference').view.shown.map(({length}) => length)"
    assert page(lengths) == [50, 50]


def test_graphs_with_times_are_not_shown_with_those_without(opened):
    whole = recorded("profile-transformer")
    nodes = (
        msgspec.structs.replace(node, start_ns=None, duration_ns=None)
        for node in whole.graphs[1].nodes
    )
    backward = msgspec.structs.replace(whole.graphs[1], nodes=tuple(nodes))
    page = opened(msgspec.structs.replace(whole, graphs=(whole.graphs[0], backward)))
    page.show("graph")
    assert page("page.opened.get('graph').view.shown") == [0]
    page("state.selectNode(60)")
    assert page("page.opened.get('graph').view.shown") == [1]


def test_two_runs_are_compared(opened):
    page = opened(serving(), serving())
    for view in page.views:
        page.show(view)
    assert "different" not in page.page.inner_text("main")


def test_dependencies_that_the_data_does_not_need(transformer):
    capture = recorded("profile-transformer")
    unneeded = [find_overlap(capture, graph).unneeded_edges for graph in (0, 1)]
    edges = transformer("state.capture.unneeded")
    assert len(edges) == sum(unneeded) > 0
    assert {edge["graph"] for edge in edges} == {1}
    of_backward = {(edge.source, edge.target) for edge in capture.graphs[1].edges}
    first = len(capture.graphs[0].nodes)
    assert {(edge["source"] - first, edge["target"] - first) for edge in edges} <= of_backward
    transformer.show("graph")
    pixels = "page.opened.get('graph').view.plot.canvas.toDataURL()"
    before = transformer(pixels)
    transformer.page.click("text=False dependencies")
    transformer.page.wait_for_timeout(50)
    assert transformer(pixels) != before
    transformer.page.click("text=False dependencies")


@pytest.fixture(scope="module")
def blank(browser):
    return browser.new_page()


def test_every_view_looks_as_it_did(opened, blank):
    page = opened(recorded("profile-transformer"))

    def screenshot(view, theme="light"):
        page("(theme) => {document.documentElement.dataset.theme = theme; changeTheme()}", theme)
        page.show(view)
        page.page.wait_for_timeout(60)
        return page.page.screenshot()

    for view in page.views:
        check_picture(blank, view, screenshot(view))
    check_picture(blank, "graph-dark", screenshot("graph", "dark"))
    # Pictures that are others are told apart.
    graph = screenshot("graph")
    others = ("answer", "tables", "source", "memory", "graph-dark")
    if not os.environ.get("UPDATE_GOLD"):
        assert min(difference(blank, name, graph) for name in others) > ELSEWHERE


def test_the_difference_and_the_run_look_as_they_did(opened, blank):
    a = recorded("profile-transformer")
    for view, captures in (("difference", (a, without(a, {11, 30}))), ("run", (serving(),))):
        page = opened(*captures)
        page("document.documentElement.dataset.theme = 'light'; changeTheme()")
        page.show(view)
        page.page.wait_for_timeout(60)
        check_picture(blank, view, page.page.screenshot())


def test_whole_iterations_that_were_timed_give_the_verdict(opened):
    page = opened(read(SAMPLES[0].with_name("mlp-bench.cgt")))
    assert page.page.inner_text(".sentence").startswith("A CUDA graph makes this ")
    assert page("document.querySelector('.sentence').dataset.verdict") == "yes"


def test_memory_by_stream(opened):
    capture = read(SAMPLES[0].with_name("two_streams.cgt"))
    page = opened(capture)
    page.show("memory")
    (pool,) = capture.memory.pools
    reserved = Counter()
    for segment in pool.segments:
        reserved[capture.streams[segment.stream].name] += segment.bytes
    free = page.page.inner_text("[data-view=memory] .strip")
    for name, size in reserved.items():
        assert f" of {bytes_text(size)} on {name}" in free


def late(capture):
    """Every node starts so late that the next nanosecond is the same number."""
    graphs = []
    for graph in capture.graphs:
        nodes = [
            msgspec.structs.replace(node, start_ns=(1 << 62) + 4096 * node.id, duration_ns=1024)
            for node in graph.nodes
        ]
        graphs.append(msgspec.structs.replace(graph, nodes=tuple(nodes)))
    return msgspec.structs.replace(capture, graphs=tuple(graphs))


def test_times_that_are_too_large_to_tell_apart(opened):
    page = opened(late(small()))
    page.show("graph")
    page("page.opened.get('graph').view.plot.move(2 ** 62, 100)")
    for view in page.views:
        page.show(view)


def test_modules_with_the_names_of_an_objects_properties(opened):
    whole = small()
    origins = tuple(
        msgspec.structs.replace(origin, module="constructor.__proto__", module_type=None)
        for origin in whole.origins
    )
    page = opened(msgspec.structs.replace(whole, origins=origins))
    for view in page.views:
        page.show(view)
    page.show("tables")
    assert "function" not in page.page.inner_text("main")
    assert "__proto__" in page.page.inner_text("[data-view=tables]")


def test_a_color_of_the_legend_selects_what_has_it(transformer):
    transformer("state.clear()")
    transformer.show("memory")
    transformer.page.select_option("[data-view=memory] select[aria-label='color by']", "op")
    transformer.show("graph")
    assert transformer.page.input_value("[data-view=graph] select[aria-label='color by']") == "op"
    transformer.page.click("[data-view=graph] .legend >> text=addmm")
    capture = recorded("profile-transformer")
    nodes = [node for graph in capture.graphs for node in graph.nodes]
    chosen = [
        at for at, node in enumerate(nodes) if capture.origins[node.origin].op == "aten::addmm"
    ]
    assert transformer("[...state.nodes]") == chosen


def test_nodes_that_wait_for_each_other_are_in_one_row(opened):
    """Medians of their starts may overlap."""
    whole = recorded("profile-train_step")
    nodes = list(whole.graphs[0].nodes)
    for at in (10, 20):
        early = nodes[at - 1].start_ns + nodes[at - 1].duration_ns - 200
        nodes[at] = msgspec.structs.replace(nodes[at], start_ns=early)
    graph = msgspec.structs.replace(whole.graphs[0], nodes=tuple(nodes))
    page = opened(msgspec.structs.replace(whole, graphs=(graph,)))
    page.show("graph")
    rows = page("page.opened.get('graph').view.visible()[0].lanes[0].rows.map((row) => row.length)")
    assert rows == [len(nodes)]


@pytest.mark.parametrize(
    ("time", "step", "text"),
    [(4_024_000, 2000, "4,024 us"), (200, 100, "200 ns"), (3e9, 1e9, "3 s"), (0, 1e6, "0 ms")],
)
def test_marks_of_a_ruler_are_told_apart(transformer, time, step, text):
    assert transformer("([time, step]) => markText(time, step)", [time, step]) == text


def test_a_capture_of_which_only_times_differ_is_colored_by_time(opened):
    a = recorded("profile-transformer")
    graph = a.graphs[0]
    slow = msgspec.structs.replace(graph.nodes[7], duration_ns=9 * graph.nodes[7].duration_ns)
    nodes = (*graph.nodes[:7], slow, *graph.nodes[8:])
    b = msgspec.structs.replace(
        a, graphs=(msgspec.structs.replace(graph, nodes=nodes), *a.graphs[1:])
    )
    page = opened(a, b)
    assert page.page.inner_text("header .title").startswith("B: 1.cgt")
    assert "slower in B" in page.page.inner_text("[data-view=difference] .legend")
    # The keys go from change to change.
    page.page.keyboard.press("ArrowRight")
    assert page("[state.capture.number, ...state.nodes]") == [1, 7]


def test_the_legend_of_memory_has_shares_of_the_bytes_in_use(opened):
    capture = recorded("profile-transformer")
    page = opened(capture)
    page.show("memory")
    used = Counter()
    peak = page("page.opened.get('memory').view.use.peakEvent")
    for block in capture.memory.allocations:
        if block.allocated_at <= peak and (block.freed_at is None or block.freed_at > peak):
            is_workspace = block.label == "cuBLAS workspace"
            used[block.label if is_workspace else capture.origins[block.origin].op] += block.bytes
    legend = page.page.inner_text("[data-view=memory] .legend")
    for op, digits in (("cuBLAS workspace", 0), ("aten::addmm", 1)):
        share = f"{used[op] / used.total():.{digits}%}"
        assert f"{op.removeprefix('aten::')}\n{share}" in legend


def test_a_number_is_shown_whole_or_not_at_all(transformer):
    drawn = """([text, room, least]) => {
      const shown = [];
      const context = {font: "", measureText: (text) => ({width: 10 * text.length}),
                       fillText: (text) => shown.push(text)};
      drawText(context, text, 0, 0, room, least);
      return shown;
    }"""
    assert transformer(drawn, ["24.8 us", 50, 7]) == []
    assert transformer(drawn, ["native_dropout", 30, 3]) == []
    assert transformer(drawn, ["native_dropout", 80, 3]) == ["native_…"]


def test_each_graph_of_a_program_has_a_row(opened):
    page = opened(serving())
    page.show("run")
    rows = page("page.opened.get('run').view.timeline.rows.map(({y}) => y)")
    assert len(set(rows)) == page("state.capture.run.entries.length") == 9
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowRight")
    assert page("state.label") == serving().graphs[1].name


def test_a_large_screen_has_larger_plots(browser, opened):
    page = opened(recorded("profile-transformer"))
    page.show("graph")
    unit = "page.opened.get('graph').view.plot.unit"
    assert page(unit) == 1
    page.page.set_viewport_size({"width": 2560, "height": 1440})
    page.page.wait_for_timeout(100)
    assert page(unit) == pytest.approx(15 / 13)
    x, y = page("""(() => {
      const {view} = page.opened.get("graph");
      const [left, right, top] = view.spot(25);
      return [(left + right) / 2 * view.plot.unit, (top + 5) * view.plot.unit];
    })()""")
    box = page.page.locator("[data-view=graph] canvas").bounding_box()
    page.page.mouse.click(box["x"] + x, box["y"] + y)
    assert page("[...state.nodes]") == [25]
    page.page.set_viewport_size({"width": 1280, "height": 800})


def test_a_narrow_screen_shows_everything_one_below_the_other(opened):
    page = opened(serving(), serving())
    page.page.set_viewport_size({"width": 400, "height": 800})
    for view in page.views:
        page.show(view)
        page("state.selectNode(0)")
        page.page.wait_for_timeout(50)
        for part in ("document.documentElement", "document.querySelector('header')"):
            assert page(f"{part}.scrollWidth") <= 400, (view, part)
        for part in ("nav", ".search", "main", "aside:not([hidden])"):
            box = page.page.locator(part).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 400
        assert page.page.locator("main").bounding_box()["width"] == 400
        assert page.page.locator("main").bounding_box()["height"] > 200
    page.page.set_viewport_size({"width": 1280, "height": 800})


def test_what_is_printed_keeps_its_proportions_and_colors(opened):
    page = opened(recorded("profile-transformer"))
    page.show("answer")
    page.page.emulate_media(media="print")
    width, height, shown = page("""(() => {
      const canvas = document.querySelector("[data-view=answer] canvas");
      const box = canvas.getBoundingClientRect();
      return [canvas.width / canvas.height, box.width / box.height,
              getComputedStyle(document.querySelector(".bar .filled")).printColorAdjust];
    })()""")
    page.page.emulate_media(media="null")
    assert width == pytest.approx(height, rel=0.02)
    assert shown == "exact"


def test_a_plot_is_painted_for_the_width_of_the_paper(opened):
    page = opened(recorded("profile-transformer"))
    page.show("graph")
    plot = 'page.opened.get("graph").view.plot'
    painted = f"[{plot}.width, {plot}.canvas.width, {plot}.height < 500]"
    before = page(painted)
    page("dispatchEvent(new Event('beforeprint'))")
    assert page(painted) == [1000, 2000, True]
    page("dispatchEvent(new Event('afterprint'))")
    assert page(painted) == before


@pytest.mark.parametrize(
    ("view", "is_wide"), [("answer", False), ("graph", True), ("source", True)]
)
def test_what_is_wide_is_printed_on_wide_paper(opened, view, is_wide):
    page = opened(recorded("profile-transformer"))
    page.show(view)
    pdf = page.page.pdf(prefer_css_page_size=True)
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert boxes
    assert {float(width) > float(height) for width, height in boxes} == {is_wide}


@pytest.mark.parametrize("by", ["module", "op", "kernel", "line", "stream"])
def test_every_column_of_a_table_is_seen_beside_the_panel(transformer, by):
    page = transformer
    page.show("tables")
    page("state.selectNode(0)")
    page("(by) => page.opened.get('tables').view.choose(by)", by)
    cut = page("""(async () => {
      await new Promise(requestAnimationFrame);
      const {content} = page.opened.get("tables").view;
      return [content.scrollWidth - content.clientWidth, content.clientWidth < 1000];
    })()""")
    assert cut == [0, True]


def test_where_there_is_room_a_node_has_its_time_and_its_kernel(opened):
    page = opened(recorded("profile-two_streams"))
    page.show("graph")
    drawn = page("""(() => {
      const {plot} = page.opened.get("graph").view;
      const texts = [];
      const fillText = plot.context.fillText;
      plot.context.fillText = (text, x, y) => texts.push([text, y]);
      plot.paint();
      plot.context.fillText = fillText;
      return texts;
    })()""")
    texts = [text for text, _ in drawn]
    at = texts.index("addmm")
    assert texts[at + 1 : at + 3] == ["5.25 us", "cutlass_80_simt_sgemm_64x64_8x5_tn_align1"]
    heights = [y for _, y in drawn[at : at + 3]]
    assert min(b - a for a, b in pairwise(heights)) >= 14


def test_a_newcomer_finds_three_things_in_one_click_each(opened):
    page = opened(recorded("profile-transformer"))
    # The most expensive line is the first of the first screen; a click shows it in its function.
    first = page.page.locator("[data-view=answer] table.compact tr").first
    assert first.inner_text().startswith("transformer.py:37\nreturn x + self.mlp(self.mlp_norm(x))")
    first.locator("button").click()
    assert "return x + self.mlp(self.mlp_norm(x))" in page.page.inner_text("aside pre .here")
    # From the finding to the dependencies, and the reason of the one that costs most.
    page.page.click("text=Show these dependencies in the graph")
    assert page("state.view") == "graph"
    assert page("page.opened.get('graph').view.extras.unneeded")
    assert "only because both were captured on the same stream" in page.page.inner_text("aside")
    # Memory opens at the peak; the first row of its list holds most of it.
    page.page.click("role=tab[name=Memory]")
    holders = page.page.locator(".lists section").first
    assert holders.inner_text().startswith("In use at the peak: 84.5 MiB")
    assert holders.locator("tbody tr").first.inner_text().startswith("cuBLAS workspace\t33.0 MiB")
    assert "freed in backward" in holders.inner_text()


def test_all_controls_are_reached_by_keyboard_and_show_the_focus(opened):
    page = opened(recorded("profile-transformer"))
    page.page.emulate_media(reduced_motion="reduce")
    for view in page.views:
        page.show(view)
        page("document.activeElement.blur(); state.selectNode(64)")
        controls = page("""() => [...document.querySelectorAll(
          "button, select, input, canvas:not(.still), summary, [role=button]")].filter(
            (each) => each.checkVisibility()).length""")
        reached = page("0")
        page("window.reached = new Set()")
        for _ in range(controls + 5):
            page.page.keyboard.press("Tab")
            reached, is_marked = page("""() => {
              const each = document.activeElement;
              if (each === document.body) return [reached.size, true];
              reached.add(each);
              return [reached.size, getComputedStyle(each).outlineStyle !== "none"];
            }""")
            assert is_marked, page("document.activeElement.outerHTML")
        # Boxes that scroll are reached too.
        assert reached >= controls, view


def test_the_arrows_go_through_tabs_and_choices(opened):
    page = opened(recorded("profile-transformer"))
    page.page.focus("#tab-answer")
    page.page.keyboard.press("ArrowRight")
    assert page("[state.view, document.activeElement.id]") == ["graph", "tab-graph"]
    page.page.keyboard.press("ArrowLeft")
    page.page.keyboard.press("ArrowLeft")
    assert page("[state.view, document.activeElement.id]") == ["memory", "tab-memory"]
    page.show("tables")
    page.page.focus("button[data-by=module]")
    page.page.keyboard.press("ArrowRight")
    assert page("document.activeElement.dataset.by") == "op"
    assert page("page.opened.get('tables').view.by") == "op"
    assert page("state.nodes.length") == 0


def test_the_keys_are_listed(opened):
    page = opened(recorded("profile-transformer"))
    page("state.selectNode(3)")
    page.page.keyboard.press("?")
    assert "previous or next node" in page.page.inner_text("dialog[open]")
    page.page.keyboard.press("2")
    assert page("state.view") == "answer"
    page.page.keyboard.press("Escape")
    assert page("document.querySelector('dialog').open") is False
    assert page("[...state.nodes]") == [3]
    page.page.keyboard.press("Escape")
    assert page("state.nodes.length") == 0


def test_a_match_is_chosen_by_keyboard(opened):
    page = opened(recorded("profile-transformer"))
    page.page.keyboard.press("/")
    page.page.keyboard.type("gelu")
    page.page.keyboard.press("ArrowDown")
    chosen = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    name = page(f"{chosen}.innerText")
    page.page.keyboard.press("Enter")
    assert page("state.label") in name
    assert page("document.querySelector('.suggestions').hidden")
    page.show("graph")
    node = page("state.nodes[0]")
    page(f"state.selectNode({node})")
    page.page.focus("aside button.neighbor")
    page.page.keyboard.press("Enter")
    assert page("state.nodes.length") == 1
    assert page("state.nodes[0]") != node


@pytest.mark.parametrize("name", ["train_step", "transformer", "two_streams"])
def test_shares_and_counts_are_those_of_profile_and_capture(opened, name):
    """And an empty node, which does no work, counts nowhere."""
    capture = recorded(f"profile-{name}")
    (first, *others) = capture.graphs
    empty = Node(len(first.nodes), "empty")
    first = msgspec.structs.replace(first, nodes=(*first.nodes, empty))
    capture = msgspec.structs.replace(capture, graphs=(first, *others))
    page = opened(capture)
    page.show("tables")
    shown = page("""page.opened.get('tables').view.table.rows.map((row) =>
      [row.name, row.nodes.length, row.weight / state.capture.totalWeight()])""")
    [table] = profile_report(capture, by="module", depth=1).tables
    assert sorted(shown) == sorted(
        [row.name, row.nodes, pytest.approx(row.share)] for row in table.rows
    )
    counted = {row.module: row.forward + row.backward for row in summarize(capture, 1).modules}
    assert {name: count for name, count, _ in shown} == counted
