"""LongBench's metrics (arXiv 2308.14508, github.com/THUDM/LongBench), from 0 to 1.

The scores are equal to those of LongBench's own code, with its peculiarities:
- A number inside a longer text counts.
- Classes that are part of the right class are removed from a list during the iteration over that
  list. The class after a removed one is skipped and stays.
- Code is judged by its first line without a comment or a backquote.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from infinipot.optional import EVAL, need

Metric = Callable[[str, str, Sequence[str]], float]
"""(prediction, one right answer, all classes) -> score"""

WIDE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠"
    "｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_NARROW = str.maketrans("", "", string.punctuation)
_WIDE = str.maketrans("", "", string.punctuation + WIDE_PUNCTUATION)


def overlap(prediction: Sequence[str], answer: Sequence[str]) -> float:
    """F1 of two bags of words."""
    same = sum((Counter(prediction) & Counter(answer)).values())
    if not same:
        return 0.0
    precision = same / len(prediction)
    recall = same / len(answer)
    return 2 * precision * recall / (precision + recall)


def words(text: str) -> list[str]:
    """The words in lower case, without punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NARROW)).split()


def f1(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return overlap(words(prediction), words(answer))


def _cut(text: str) -> list[str]:
    return list(need("jieba", "scoring Chinese tasks", "jieba").cut(text, cut_all=False))


def f1_zh(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return overlap(_words_zh(prediction), _words_zh(answer))


def _words_zh(text: str) -> list[str]:
    words = ("".join(part.lower().translate(_WIDE).split()) for part in _cut(text))
    return [word for word in words if word]


def rouge(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L F of the package `rouge`.

    It is 0 for a text without words, and for a sentence that is too long for the package's
    recursion.
    """
    scorer = need("rouge", "scoring summaries", EVAL).Rouge(metrics=["rouge-l"])
    try:
        return float(scorer.get_scores([prediction], [answer], avg=True)["rouge-l"]["f"])
    except (ValueError, RecursionError):
        return 0.0


def rouge_zh(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return rouge(" ".join(_cut(prediction)), " ".join(_cut(answer)))


def classification(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    matches = [name for name in classes if name in prediction]
    # LongBench removes from the list inside the loop, so the next class is skipped
    for name in matches:
        if name in answer and name != answer:
            matches.remove(name)
    if answer in matches:
        return 1 / len(matches)
    return 0.0


def _numbers(prediction: str, right: str) -> float:
    numbers = re.findall(r"\d+", prediction)
    if numbers:
        return numbers.count(right) / len(numbers)
    return 0.0


def count(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return _numbers(prediction, answer)


def retrieval(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return _numbers(prediction, re.findall(r"Paragraph (\d+)", answer)[0])


def retrieval_zh(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    return _numbers(prediction, re.findall(r"段落(\d+)", answer)[0])


def code(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """Edit similarity in whole percent, equal to fuzzywuzzy with python-Levenshtein."""
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
    """The best score over all right answers.

    first_line: only the first line of the prediction that is not empty counts.
    """
    if first_line:
        prediction = prediction.lstrip("\n").split("\n")[0]
    points = [METRICS[metric](prediction, answer, classes or ()) for answer in answers]
    return max(points, default=0.0)


def needed(metrics: set[str], known: Mapping[str, Metric] = METRICS) -> None:
    """Raise ValueError if a metric needs a package that is missing, before the model runs. known:
    the metrics by name."""
    samples = {"retrieval": ("1", "Paragraph 1"), "retrieval_zh": ("1", "段落1")}
    for metric in sorted(metrics):
        known[metric](*samples.get(metric, ("one", "two")), ())
