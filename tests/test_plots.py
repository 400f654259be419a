"""Pictures of replies and models by matplotlib, and progress bars in notebooks."""

import io
import sys
import types

import numpy as np
import pytest

from pgmkit import (
    Categorical,
    Domain,
    Integer,
    InvalidInput,
    Measurement,
    Reply,
    Schema,
    ask,
    estimate,
)
from pgmkit.runtime.progress import bar

SCHEMA = Schema({"age": Integer(0, 2), "$x$": Categorical(("F", "M"))})
NOISY = [Measurement(("age", "$x$"), [[10.0, 20.0], [30.0, 40.0], [5.0, 5.0]], 1.0)]
MODEL = estimate(SCHEMA.domain, NOISY)


@pytest.fixture(autouse=True)
def matplotlib() -> types.ModuleType:
    found = pytest.importorskip("matplotlib")
    found.use("Agg")
    return found


def test_a_cdf_has_a_line_of_steps_for_each_group() -> None:
    reply = ask(MODEL, SCHEMA, "$x$, cdf(age)")
    assert reply.curve
    axes = reply.plot()
    heights = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert heights == {
        "F": pytest.approx([10, 40, 45], abs=1e-6),
        "M": pytest.approx([20, 60, 65], abs=1e-6),
    }
    assert all(line.get_drawstyle() == "steps-post" for line in axes.lines)
    assert [t.get_text() for t in axes.get_xticklabels()] == [f"up to {n}" for n in range(3)]
    assert axes.get_legend() is not None and axes.get_ylabel() == "count"


def test_the_band_of_a_cdf_is_its_interval() -> None:
    columns = {
        "age": ["up to 0", "up to 1"],
        "count": np.array([3.0, 9.0]),
        "low": np.array([1.0, 8.0]),
        "high": np.array([4.0, 11.0]),
    }
    axes = Reply(columns, curve=True).plot()
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert {1.0, 4.0, 8.0, 11.0} >= set(corners[:, 1]) >= {1.0, 4.0}
    assert axes.get_legend() is None


def test_a_model_is_drawn_as_its_graph(matplotlib: types.ModuleType) -> None:
    domain = Domain({name: 2 for name in ("a", "b", "$c", "d")})
    noisy = [Measurement(c, np.full((2, 2), 5.0), 1.0) for c in (("a", "b"), ("b", "$c"))]
    model = estimate(domain, [*noisy, Measurement(("d",), [10.0, 10.0], 1.0)])
    axes = model.plot()
    assert len(axes.lines) == 2 and len(axes.collections[0].get_offsets()) == 4
    assert sorted(_shown(text.get_text()) for text in axes.texts) == sorted(domain)
    axes.figure.savefig(io.BytesIO())
    own = matplotlib.pyplot.figure().subplots()
    assert model.plot(own) is own


def _shown(text: str) -> str:
    """Return the text that matplotlib draws; fail if it would draw a formula."""
    assert not pytest.importorskip("matplotlib.cbook").is_math_text(text)
    return text.replace(r"\$", "$")


@pytest.mark.parametrize("curve", [False, True])
def test_labels_with_dollar_signs_are_no_formulas(curve: bool) -> None:
    """One bar a line, also for lines with one label."""
    labels = ["$0..$10", r"$\x$", "a", "a"]
    axes = Reply({"of": labels, "up to": labels, "$n$": np.arange(4.0)}, curve=curve).plot()
    axes.figure.savefig(io.BytesIO())
    ticks = axes.get_xticklabels() if curve else axes.get_yticklabels()
    said = [f"{label}, {label}" for label in labels]
    assert [_shown(tick.get_text()) for tick in ticks] == (labels[:3] if curve else said)
    assert _shown(axes.get_ylabel() if curve else axes.get_xlabel()) == "$n$"
    if curve:
        texts = [_shown(text.get_text()) for text in axes.get_legend().get_texts()]
        assert texts == labels[:3]
    else:
        assert [bar.get_width() for bar in axes.patches] == [0, 1, 2, 3]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for plot in (MODEL.plot, ask(MODEL, SCHEMA, "age").plot):
        with pytest.raises(InvalidInput, match=r"\.\[plot\]"):
            plot()


def test_a_reply_shows_its_notes_in_a_notebook() -> None:
    shown = Reply({"count": np.array([5.0])}, ("of <b>all</b>",))._repr_html_()
    assert "<small>of &lt;b&gt;all&lt;/b&gt;</small>" in shown


def test_bars_show_in_notebooks_and_not_in_pipes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in bar(range(2), desc="quiet"):
        pass
    notebook = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(
        sys.modules,
        "IPython",
        types.SimpleNamespace(get_ipython=lambda: notebook, version_info=(9,)),
    )
    for _ in bar(range(2), desc="shown"):
        pass
    said = "".join(capsys.readouterr())
    assert "shown" in said and "quiet" not in said
