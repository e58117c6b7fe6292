"""`lln bench matching`: how close LLN comes to softmax attention on Gaussian inputs (Figure 2).

For each matching, the entropy of P in bits, its spectral gap and the variance of log P stand beside
softmax's, for several standard deviations of q and k.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.attention import Attention, LLNAttention, SoftmaxAttention
from lln.bench.record import environment
from lln.files import write, write_json
from lln.instruments import Dense, FactoredMatrix, entropy, matrix_of, spectral_gap
from lln.matching import PRESETS, Matching

MATCHINGS = {
    "entropy": PRESETS["entropy"],
    "variance": Matching(target="variance"),
    "paper": PRESETS["paper"],
}
GAP_TOLERANCE = 1e-3  # λ₂ scatters far more than this from head to head


@dataclass(frozen=True)
class Setting:
    """What is compared.

    Attributes:
        head_dims: D.
        n: sequence lengths.
        sigmas: standard deviations of both q and k.
        draws: inputs that each figure averages; an input has several heads, drawn independently.
        heads: per draw. λ₂ is an extreme value, and its difference to softmax's scatters by 0.1 to
            0.2 from head to head, several times the difference itself.
        seed: of the inputs.
    """

    head_dims: Sequence[int] = (32, 64, 128)
    n: Sequence[int] = (256, 512, 1024)
    sigmas: Sequence[float] = (0.5, 0.8, 1.0, 1.2, 1.5, 1.8)
    draws: int = 8
    heads: int = 4
    seed: int = 0

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        return len(self.head_dims) * len(self.n) * len(self.sigmas)


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `concentration.json` holds."""
    results = []
    for head_dim in setting.head_dims:
        for n in setting.n:
            generator = torch.Generator().manual_seed(setting.seed)
            shape = (setting.draws, setting.heads, n, head_dim)
            q, k = (torch.randn(shape, generator=generator).double() for _ in range(2))
            for sigma in setting.sigmas:
                cell = {"head_dim": head_dim, "n": n, "sigma": sigma}
                draws = [
                    _measure(sigma * q[i : i + 1], sigma * k[i : i + 1])
                    for i in range(setting.draws)
                ]
                results.append({**cell, **_summary(draws)})
                advance()
    return {
        "benchmark": "matching",
        **environment(),
        "setting": asdict(setting),
        "results": results,
    }


@torch.no_grad()
def _measure(q: Tensor, k: Tensor) -> dict[str, dict[str, Tensor]]:
    """What each attention does to one draw: name → measure → `(1, H)`."""
    sizes = q.shape[1], q.shape[3]
    cores: dict[str, Attention] = {"softmax": SoftmaxAttention(*sizes)}
    cores |= {name: LLNAttention(*sizes, matching=m) for name, m in MATCHINGS.items()}
    return {name: _measures(core, q, k) for name, core in cores.items()}


def _measures(core: Attention, q: Tensor, k: Tensor) -> dict[str, Tensor]:
    matrix = matrix_of(core, q, k)
    p = matrix.rows(torch.arange(q.shape[2]))
    if not isinstance(matrix, FactoredMatrix):  # which knows a shorter way to its gap
        matrix = Dense(p)
    return {
        "entropy": entropy(p).bits,
        "gap": spectral_gap(matrix, tolerance=GAP_TOLERANCE, singular=False).gap,
        "variance": p.log().var((-2, -1)),
    }


def _summary(draws: list[dict[str, dict[str, Tensor]]]) -> dict[str, dict[str, float]]:
    """Means over draws and heads, and the standard deviation of single heads."""
    summary: dict[str, dict[str, float]] = {}
    for name, measures in draws[0].items():
        summary[name] = {}
        for measure in measures:
            values = torch.cat([draw[name][measure] for draw in draws])  # (draws, H)
            summary[name][measure] = values.mean().item()
            summary[name][f"{measure}_std"] = values.std().item()
    return summary


def markdown(report: dict[str, Any]) -> str:
    """A table: softmax, then the difference of each matching."""
    lines = [
        "| D | N | σ | softmax H | γ | var log P "
        "| entropy: ΔH | Δγ | variance: Δvar | paper: ΔH | Δγ | Δvar |",
        "|" + "---:|" * 12,
    ]
    for row in report["results"]:
        softmax = row["softmax"]

        def delta(name: str, measure: str, row: dict[str, Any] = row) -> float:
            return float(row[name][measure] - row["softmax"][measure])

        def percent(name: str, row: dict[str, Any] = row) -> float:
            return 100 * delta(name, "variance", row) / float(row["softmax"]["variance"])

        lines.append(
            f"| {row['head_dim']} | {row['n']} | {row['sigma']} "
            f"| {softmax['entropy']:.2f} | {softmax['gap']:.3f} | {softmax['variance']:.2f} "
            f"| {delta('entropy', 'entropy'):+.2f} | {delta('entropy', 'gap'):+.3f} "
            f"| {percent('variance'):+.1f} % | {delta('paper', 'entropy'):+.2f} "
            f"| {delta('paper', 'gap'):+.3f} | {percent('paper'):+.0f} % |"
        )
    return "\n".join(lines) + "\n"


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `concentration.json`, `.md` and `.png` into `folder`."""
    from lln.bench.matching_figure import draw

    write_json(folder / "concentration.json", report)
    write(folder / "concentration.md", lambda file: file.write_text(markdown(report)))
    write(folder / "concentration.png", partial(draw, report))
