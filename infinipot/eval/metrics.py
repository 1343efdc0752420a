"""LongBench's metrics (arXiv 2308.14508, github.com/THUDM/LongBench), 0 .. 1, equal to its own to
the last quirk.

The quirks are deliberate: a number inside a longer text counts, classes that are part of the right
one are crossed out while the list is walked through (so one behind another is left standing), and
code is judged by its first line without a comment or a backquote.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from infinipot.optional import EVAL, need

Metric = Callable[[str, str, Sequence[str]], float]
"""prediction, one right answer, all classes -> score"""

WIDE_PUNCTUATION = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
_NARROW = str.maketrans("", "", string.punctuation)
_WIDE = str.maketrans("", "", string.punctuation + WIDE_PUNCTUATION)


def overlap(said: Sequence[str], right: Sequence[str]) -> float:
    """F1 of two bags of words."""
    same = sum((Counter(said) & Counter(right)).values())
    if not same:
        return 0.0
    precision = same / len(said)
    recall = same / len(right)
    return 2 * precision * recall / (precision + recall)


def words(text: str) -> list[str]:
    """Lower case, without punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NARROW)).split()


def f1(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return overlap(words(prediction), words(answer))


def _cut(text: str) -> list[str]:
    return list(need("jieba", "scoring Chinese tasks", "jieba").cut(text, cut_all=False))


def f1_zh(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    said, right = (
        [word for part in _cut(text) if (word := "".join(part.lower().translate(_WIDE).split()))]
        for text in (prediction, answer)
    )
    return overlap(said, right)


def rouge(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L F of the package `rouge`; 0 for texts without a word, and for sentences too long for
    its recursion."""
    scorer = need("rouge", "scoring summaries", EVAL).Rouge(metrics=["rouge-l"])
    try:
        return float(scorer.get_scores([prediction], [answer], avg=True)["rouge-l"]["f"])
    except (ValueError, RecursionError):
        return 0.0


def rouge_zh(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return rouge(" ".join(_cut(prediction)), " ".join(_cut(answer)))


def classification(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    named = [name for name in classes if name in prediction]
    # while it shrinks: the one behind a removed one is passed over, as in the original
    for name in named:
        if name in answer and name != answer:
            named.remove(name)
    if answer in named:
        return 1 / len(named)
    return 0.0


def _numbers(prediction: str, right: str) -> float:
    said = re.findall(r"\d+", prediction)
    if said:
        return said.count(right) / len(said)
    return 0.0


def count(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return _numbers(prediction, answer)


def retrieval(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return _numbers(prediction, re.findall(r"Paragraph (\d+)", answer)[0])


def retrieval_zh(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return _numbers(prediction, re.findall(r"段落(\d+)", answer)[0])


def code(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """Edit similarity in whole percent, as fuzzywuzzy gives it with python-Levenshtein."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(sign in line for sign in ("`", "#", "//"))), "")
    if line == answer:
        return 1.0
    if line and answer:
        return round(need("rapidfuzz.fuzz", "scoring code", EVAL).ratio(line, answer)) / 100
    return 0.0


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (f1, f1_zh, rouge, rouge_zh, classification, count, retrieval, retrieval_zh, code)
}


def score(
    metric: str,
    prediction: str,
    answers: Sequence[str],
    classes: Sequence[str] | None = None,
    first_line: bool = False,
) -> float:
    """The best score against any of the right answers. first_line: only the first line that is not
    empty counts."""
    if first_line:
        said = prediction.lstrip("\n").split("\n")[0]
    else:
        said = prediction
    return max((METRICS[metric](said, answer, classes or ()) for answer in answers), default=0.0)


def needed(metrics: set[str]) -> None:
    """Refuse now, before the model runs, if a package for one of these is missing."""
    samples = {"retrieval": ("1", "Paragraph 1"), "retrieval_zh": ("1", "段落1")}
    for metric in sorted(metrics):
        METRICS[metric](*samples.get(metric, ("one", "two")), ())
