"""Keep the heads that need the whole text, and compare: tables of docs/linearize.md.

    python tools/make_heads.py minilm --held-out FILE     all-MiniLM-L6-v2, window 16 and 2 sinks
    python tools/make_heads.py smollm2 --held-out FILE    SmolLM2-135M-Instruct, window 64, 4 sinks
    python tools/make_heads.py stories --model FILE       stories260K in the format of llama2.c
    python tools/make_heads.py … --text FILE              rank and train on a text of your own
    python tools/make_heads.py … --more FILE              rank and train on this text too
    python tools/make_heads.py … --trials N               plant so many numbers for each depth
    python tools/make_heads.py … --slow                   compare with heads ranked one by one
    python tools/make_heads.py … --students layers        compare with these students alone
    python tools/make_heads.py … --times                  measure the speed, and stop
    python tools/make_heads.py … --print                  print the tables without writing

Models and texts are those of make_linearized.py. stories260K has no text of its own, so it reads
what it writes. All results are stored in out/linearize, so an interrupted run continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from duo_attention import duo_ranking
from generated import page_with, update
from make_linearized import FAR, KEPT, PAGE, fit_text, judged_texts, smollm2, timed, told
from make_sample import model_folder
from make_stars import markdown

from kerneltrick import hf
from kerneltrick.analysis import Store, run_key
from kerneltrick.attention import Dial
from kerneltrick.hf._linearized import dial_of, with_whole
from kerneltrick.hf._passkey import FITTED_PHRASINGS


class Recipe(NamedTuple):
    """What a limited head sees, and how the model is ranked, trained and evaluated."""

    setting: str
    length: int  # tokens per window of the text that ranks heads
    windows: int
    judged: tuple[int, ...]  # lengths of the evaluation windows
    most: int  # number of evaluation windows
    mixed: bool = True  # whether the text is mixed in short pieces
    long: tuple[int, int] | None = None  # length and number of windows far longer than those
    trials: int = 0  # planted numbers for each depth
    trained: str | None = None  # what a limited head sees in the student that is trained, …
    finetune: Any = "none"  # … and how that is trained
    contexts: tuple[int, ...] = ()  # context lengths at which decoding is timed
    shares: tuple[float, ...] = (0, 0.1, 0.25, 0.5, 1)  # of whole heads, for the curve


RECIPES = {
    "minilm": Recipe(
        "softmax@window=16,sinks=2",
        length=256,
        windows=2400,
        judged=(128, 256),
        most=40,
        trained="hedgehog@window=16,sinks=2",
        finetune="all",
    ),
    "smollm2": Recipe(
        "softmax@window=64,sinks=4",
        length=1024,
        windows=128,
        judged=(1024,),
        most=4,
        mixed=False,
        long=(4096, 2),
        trials=20,
        trained=FAR,
        finetune="lora",
        contexts=(1024, 4096, 8156),
    ),
    "stories": Recipe(
        "softmax@window=64,sinks=4",
        length=512,
        windows=64,
        judged=(512,),
        most=16,
        shares=(0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 1),
    ),
}
PLANTED = 512  # tokens around a planted number
SHARE = 0.25  # of heads, or of layers
STUDENTS = {  # what a quarter of the heads is compared with, and how its row is called
    "layers": "layers",
    "duo": "heads, chosen by DuoAttention",
    "fitted": "heads, with maps",
    "trained": "heads, with maps and training",
}


def stories(path: Path) -> tuple[Path, list[list[int]]]:
    """Convert a llama2.c file to a model folder, and let the model write texts, once."""
    folder, texts = KEPT / "stories260K", KEPT / "stories260K.json"
    if not folder.exists():
        content = path.read_bytes()
        dim, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack("7i", content[:28])
        config = transformers.LlamaConfig(
            vocab_size=abs(vocabulary),
            hidden_size=dim,
            intermediate_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=length,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        )
        model = transformers.AutoModelForCausalLM.from_config(config)
        numbers, at = torch.tensor(np.frombuffer(content, "<f4", offset=28).copy()), 0

        def take(*shape: int) -> Any:
            nonlocal at
            found = numbers[at : at + int(np.prod(shape))].reshape(shape)
            at += found.numel()
            return found

        def halves(weight: Any, count: int) -> Any:
            """Turn interleaved rotary pairs, as llama2.c has them, into two halves."""
            pairs = weight.reshape(count, dim // heads // 2, 2, dim)
            return pairs.transpose(1, 2).reshape(weight.shape)

        width = dim // heads * kv_heads
        with torch.no_grad():
            body = model.model
            body.embed_tokens.weight.copy_(take(abs(vocabulary), dim))
            parts = {
                "input_layernorm": [take(dim) for _ in range(layers)],
                "self_attn.q_proj": [halves(take(dim, dim), heads) for _ in range(layers)],
                "self_attn.k_proj": [halves(take(width, dim), kv_heads) for _ in range(layers)],
                "self_attn.v_proj": [take(width, dim) for _ in range(layers)],
                "self_attn.o_proj": [take(dim, dim) for _ in range(layers)],
                "post_attention_layernorm": [take(dim) for _ in range(layers)],
                "mlp.gate_proj": [take(hidden, dim) for _ in range(layers)],
                "mlp.down_proj": [take(dim, hidden) for _ in range(layers)],
                "mlp.up_proj": [take(hidden, dim) for _ in range(layers)],
            }
            for name, each in parts.items():
                for layer, weight in zip(body.layers, each, strict=True):
                    layer.get_submodule(name).weight.copy_(weight)
            body.norm.weight.copy_(take(dim))
        torch.manual_seed(0)
        written = model.eval().generate(
            torch.ones((80, 1), dtype=torch.long),
            min_new_tokens=length - 1,
            max_new_tokens=length - 1,
            do_sample=True,
            pad_token_id=0,
        )
        texts.write_text(json.dumps(written.tolist()))
        model.save_pretrained(folder)
    return folder, json.loads(texts.read_text())


def agreement(fast: hf.HeadRanking, slow: hf.HeadRanking) -> str:
    """Return how many of the heads that one ranking keeps the other keeps too, as a table."""
    lines: list[tuple[str, ...]] = [("whole heads", "in both rankings")]
    for share in (0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5):
        count = round(share * len(fast.order))
        both = set(fast.order[:count]) & set(slow.order[:count])
        lines.append((str(count), str(len(both))))
    return markdown(lines)


def measure(arguments: argparse.Namespace) -> str:
    """Rank the heads, keep a quarter of them, evaluate, and return the tables."""
    name: str = arguments.model
    recipe = RECIPES[name]
    teacher, windows, judged = texts(arguments)
    trials = recipe.trials if arguments.trials is None else arguments.trials

    def made(what: str, setting: str = recipe.setting, **how: Any) -> hf.Linearization:
        # One fit serves both students with maps.
        file = "trained" if what == "fitted" else what
        resume = KEPT / f"{name}-{file}.unfinished"
        return hf.linearize(
            teacher,
            windows,
            setting,
            keep="auto",
            share=SHARE,
            progress=told,
            resume=resume,
            **how,
        )

    found = made("whole")
    print(*found.remarks, sep="\n", flush=True)
    ranking = found.ranking
    assert ranking is not None
    tables = []
    if arguments.times:
        return markdown(timed(f"{name}-whole", found.model, None, recipe.contexts))
    if arguments.slow:
        slow = made("slow", ranking="slow").ranking
        assert slow is not None
        tables.append(agreement(ranking, slow))
    rows: dict[Any, dict[str, Any]] = {}
    curves = {}

    def judge(what: str, student: hf.Linearization, ids: list[list[int]], **how: Any) -> Any:
        return hf.evaluate(
            student.model,
            ids,
            teacher=teacher if student.changed else None,
            progress=told,
            resume=KEPT / f"{name}-{what}-evaluated.unfinished",
            **how,
        )

    planted: dict[Any, list[hf.Passkey]] = {}
    for text, ids in judged.items():
        pieces = [own[at : at + PLANTED] for own in ids for at in range(0, text[1], PLANTED)]
        planted[text] = hf.passkeys(teacher, pieces, trials=trials) if trials else []
        asked = {"passkeys": planted[text], "shares": recipe.shares}
        own = judge("whole", found, ids, ranking=ranking, **asked)
        rows[text] = rows_of(own)
        for kind, part in parts(ranking).items():
            (point,) = judge("whole", found, ids, ranking=part, shares=[SHARE]).curve
            file = KEPT / f"{name}-{kind.split()[0]}-recalled.unfinished"
            with found.model.attending_by(settings_of(name, part, found)):
                figures, errors = recall(found.model, planted[text], file)
            figures = {"perplexity": point.quality, **figures}
            rows[text][f"heads, ranked on {kind} alone"] = (figures, errors)
        curves[text] = curve(own)
    students: dict[str, dict[str, Any]] = {"layers": {"unit": "layer"}}
    if trials:
        students["duo"] = {}
    if recipe.trained is not None:
        students["fitted"] = {"setting": recipe.trained}
        students["trained"] = {"setting": recipe.trained, "finetune": recipe.finetune}
    for student in [x for x in students if x in arguments.students]:
        start = time.monotonic()
        other = found if student == "duo" else made(student, **students[student])
        settings = other.model.settings
        if student == "duo":
            settings = duo_settings(name, teacher, windows, found)
        print(*other.remarks, sep="\n")
        print(f"{student}: took {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
        for text, ids in judged.items():
            with other.model.attending_by(settings):
                result = judge(student, other, ids)
                file = KEPT / f"{name}-{student}-recalled.unfinished"
                figures, errors = recall(other.model, planted[text], file)
            (hybrid,) = (row for row in result.rows if row.name == "hybrid")
            rows[text][STUDENTS[student]] = ({**hybrid.figures, **figures}, errors)
    judgements = [
        table
        for text, ids in judged.items()
        for table in (shown(text[0], ids, rows[text]), curves[text])
    ]
    if recipe.long is not None:
        (title, _), length = next(iter(judged)), recipe.long[0]
        words = judged_texts(arguments.held_out)[title]
        tokens = math.prod(recipe.long)
        ids = hf.windows(teacher, words, tokens=tokens, length=length, least=1)
        judgements.append(shown(title, ids, rows_of(judge("whole", found, ids))))
    if recipe.contexts:
        tables.append(markdown(timed(f"{name}-whole", found.model, None, recipe.contexts)))
    return "\n\n".join([*judgements, *tables])


def rows_of(found: hf.Evaluation) -> dict[str, Any]:
    """Return the figures and errors of each row; the model itself is called heads."""
    rows = {row.name: (row.figures, row.errors) for row in found.rows}
    rows["heads"] = rows.pop("hybrid")
    return rows


def recall(
    model: Any, planted: list[hf.Passkey], path: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the share of planted numbers that a model repeats, with its standard error.

    path: the file that stores which numbers were repeated.
    """
    if not planted:
        return {}, {}
    right = []
    store = Store(path, run_key([str(dial_of(x)) for x in model.settings]))
    with torch.inference_mode():
        for number, each in enumerate(planted):
            told("recalling", number, len(planted))
            if store.get(run_key(each)) is None:
                ids = torch.tensor([each.ids])
                out = model(input_ids=ids, logits_to_keep=each.answer + 1, use_cache=False)
                found = out.logits[0, :-1].argmax(-1) == ids[0, -each.answer :]
                store.put(run_key(each), bool(found.all()))
            right.append(store.get(run_key(each)))
    share = float(np.mean(right))
    return {"recall": share}, {"recall": (share * (1 - share) / len(right)) ** 0.5}


def duo_settings(
    name: str, teacher: Path, windows: list[list[int]], found: hf.Linearization
) -> list[Any]:
    """Return the dials of layers whose heads DuoAttention's gates choose. The gates are stored."""
    path = KEPT / f"{name}-duo.json"
    assert found.ranking is not None
    if not path.exists():
        network = transformers.AutoModelForCausalLM.from_pretrained(teacher).eval()
        pieces = [own[:PLANTED] for own in windows]
        how = {"trials": len(pieces) // 2, "phrasings": FITTED_PHRASINGS, "seed": 1}
        planted = hf.passkeys(teacher, pieces, **how)
        near = found.ranking.window, found.ranking.sinks
        path.write_text(json.dumps(duo_ranking(network, planted, *near, progress=told).record()))
    return settings_of(name, hf.HeadRanking.from_record(json.loads(path.read_text())), found)


def settings_of(name: str, ranking: hf.HeadRanking, found: hf.Linearization) -> list[Dial]:
    """Return the dials of layers with as many whole heads as a model has, by another ranking."""
    whole = ranking.whole(sum(map(len, found.whole.values())))
    limited = Dial.get(RECIPES[name].setting)
    layers, heads = ranking.shape
    return [with_whole(limited, whole.get(layer, ()), heads) for layer in range(layers)]


def texts(
    arguments: argparse.Namespace,
) -> tuple[Path, list[list[int]], dict[tuple[str, int], list[list[int]]]]:
    """Return the model, the windows to rank and train on, and the windows to evaluate on."""
    name, held_out = arguments.model, arguments.held_out
    recipe = RECIPES[name]
    judged: dict[tuple[str, int], list[list[int]]] = {}
    if name == "stories":
        if arguments.path is None:
            raise SystemExit("stories needs --model FILE, stories260K.bin of llama2.c")
        teacher, written = stories(arguments.path)
        judged["its own stories", recipe.length] = written[: recipe.most]
        return teacher, written[recipe.most :], judged
    teacher = model_folder() if name == "minilm" else smollm2()
    if arguments.text is None:
        text = fit_text(recipe.mixed, arguments.more)
    else:
        text = arguments.text.read_text(encoding="utf-8")
    count = recipe.windows * recipe.length
    windows = hf.windows(teacher, text, tokens=count, length=recipe.length, least=8)
    others = judged_texts(held_out)
    if name == "smollm2" and held_out is not None:
        others = {held_out.name: others[held_out.name]}
    for title, words in others.items():
        for length in recipe.judged:
            tokens = recipe.most * length
            judged[title, length] = hf.windows(
                teacher, words, tokens=tokens, length=length, least=2
            )
    return teacher, windows, judged


def parts(ranking: hf.HeadRanking) -> dict[str, hf.HeadRanking]:
    """Return what the ranking would be on text alone, and on planted facts alone."""
    planted = {name: x for name, x in ranking.scores.items() if name.startswith("planted")}
    text = {name: x for name, x in ranking.scores.items() if name not in planted}
    if not planted:
        return {}
    return {
        kind: dataclasses.replace(ranking, scores=scores)
        for kind, scores in (("text", text), ("planted facts", planted))
    }


def shown(title: str, ids: list[list[int]], rows: dict[str, Any]) -> str:
    """Return the table of figures."""
    names = list(rows["teacher"][0])
    lines: list[tuple[str, ...]] = [(f"{title}, {len(ids)} × {len(ids[0])} tokens", *names)]
    for name, (figures, errors) in rows.items():
        cells = [
            (f"{figures[x]:.4g}" if x in figures else "–")
            + (f" ± {errors[x]:.2g}" if errors.get(x) else "")
            for x in names
        ]
        lines.append((name, *cells))
    return markdown(lines)


def curve(found: hf.Evaluation) -> str:
    """Return the table of quality against the number of whole heads."""
    what = next(iter(found.rows[0].figures))
    heads = ("whole heads", *(f"{x.heads}{' (knee)' if x.knee else ''}" for x in found.curve))
    return markdown([heads, (what, *(f"{x.quality:.4g}" for x in found.curve))])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=RECIPES)
    parser.add_argument("--held-out", type=Path, help="another text to evaluate on")
    parser.add_argument("--text", type=Path, help="the text to rank and train on")
    parser.add_argument("--more", type=Path, help="a text to rank and train on, too")
    parser.add_argument("--model", dest="path", type=Path, help="stories260K.bin")
    parser.add_argument("--trials", type=int, help="planted numbers for each depth")
    parser.add_argument("--slow", action="store_true", help="rank heads one by one, too")
    parser.add_argument(
        "--students", nargs="*", choices=STUDENTS, default=[*STUDENTS], help="what to compare with"
    )
    parser.add_argument("--times", action="store_true", help="measure the speed, and stop")
    parser.add_argument("--print", action="store_true", help="print the tables without writing")
    arguments = parser.parse_args(argv)
    KEPT.mkdir(parents=True, exist_ok=True)
    table = measure(arguments)
    print(table)
    if not (arguments.print or arguments.times):
        begin, end = (f"<!-- {arguments.model}-heads:{edge} -->" for edge in ("begin", "end"))
        page = page_with(PAGE.read_text(encoding="utf-8"), table, begin, end)
        update({PAGE: page}, check=False, target=f"heads-{arguments.model}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
