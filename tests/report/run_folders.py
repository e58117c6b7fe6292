"""Folders of runs as training writes them, with made-up numbers."""

import json
import math
import random

VERSIONS = {"lln": "0.1.0", "torch": "2.13.0", "transformers": "5.22.2", "python": "3.11.2"}
MACHINE = {"processor": "Some CPU @ 2.00GHz", "cores": 2, "system": "Linux"}


def write_run(
    folder,
    label="lln_diag",
    *,
    seed=0,
    name="wikitext2-cpu",
    kind="pretrain",
    steps=400,
    every=10,
    layers=3,
    heads=4,
    loss_scale=False,
    status="finished",
    speed=0.1,
):
    """Writes one run; returns its folder."""
    folder.mkdir(parents=True)
    mixer = label.partition("+")[0]
    # A string: its hash is the same in every process.
    chance = random.Random(f"{label} {seed}")
    floor = 1.2 + 0.4 * chance.random()
    bias = random.Random(label).random()
    lines, scale = [], 2.0**16
    for step in range(every, steps + 1, every):
        seconds = step * speed
        fall = math.exp(-step / (0.25 * steps))
        loss = floor + 4 * fall
        row = {
            "kind": "train",
            "step": step,
            "seconds": seconds,
            "loss": loss + chance.gauss(0, 0.06),
            "grad_norm": math.exp(chance.gauss(0, 0.3)) * (0.5 + fall),
            "learning_rate": 5e-4 * min(step / (0.1 * steps), (steps - step) / (0.9 * steps)),
            "seconds_per_step": speed * (1 + 0.05 * chance.random()),
            "memory_bytes": int(speed * 4e9 * (1 - math.exp(-step / 20))),
        }
        if loss_scale:
            scale *= 0.5 if chance.random() < 0.1 else 2 if chance.random() < 0.1 else 1
            row["loss_scale"] = scale
        lines.append(row)
        if step % (5 * every) == 0:
            share = {"accuracy": 0.75 - 0.5 * fall - 0.1 * floor}
            lines.append(
                {"kind": "eval", "step": step, "seconds": seconds, "loss": loss + 0.1, **share}
            )
        if layers and step % (2 * every) == 0:
            rows = [
                {
                    "layer": layer,
                    "name": f"encoder.layers.{layer}.mixer",
                    "head": head,
                    "temperature": 0.4 + bias + 0.1 * head + (2 + layer) * fall,
                    "entropy": 3 + bias + layer + 0.3 * head + 2 * fall,
                    "gap": 0.3 + 0.2 * bias + 0.05 * layer + 0.02 * head + 0.1 * fall,
                    **({"alpha": 2.2 - 0.3 * fall, "beta": 2.1} if "lln" in mixer else {}),
                }
                for layer in range(layers)
                for head in range(heads)
            ]
            lines.append({"kind": "attention", "step": step, "seconds": seconds, "rows": rows})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    final = {
        "best_step": steps,
        "steps": steps,
        "eval_loss": floor + 0.1,
        "accuracy": 0.75 - 0.1 * floor,
        "seconds_per_step": speed,
        "peak_memory_bytes": int(speed * 4e9),
        "train_seconds": steps * speed,
    }
    head = {
        "kind": kind,
        "name": name,
        "label": label,
        "mixer": mixer,
        "mixer_options": dict(part.split("=") for part in label.split("+")[1:]),
        "seed": seed,
        "command": f"lln {kind} experiments/{name}.toml mixer=softmax,lln_diag seed=0,1",
        "config": {"name": name, "model": {"mixer": mixer, "layers": layers}, "seed": seed},
        "versions": VERSIONS,
        "machine": MACHINE,
        "commit": "c961c78",
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T04:04:05+00:00" if status == "finished" else None,
        "status": status,
        "parameters": 1_234_567,
        "final": final if status == "finished" else {},
    }
    (folder / "run.json").write_text(json.dumps(head))
    return folder
