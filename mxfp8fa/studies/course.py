"""The sixteen notebooks of the course: what each one asks, and which ones it builds on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Lesson:
    """One notebook.

    Attributes:
        number: 0 to 15; the file name begins with it.
        title: a few words.
        question: the one question it answers.
        needs: numbers of the notebooks it builds on, all smaller.
    """

    number: int
    title: str
    question: str
    needs: tuple[int, ...]


LESSONS = (
    Lesson(0, "The map", "What is there, and in which order do I read it?", ()),
    Lesson(
        1,
        "MXFP8 numbers",
        "What can eight bits and one scale per 32 say, and what does an outlier do to it?",
        (0,),
    ),
    Lesson(
        2,
        "Block-scaled attention",
        "Which axis does each GEMM need its scales on, and what does each choice cost?",
        (1,),
    ),
    Lesson(3, "A Blackwell SM in Python", "What are TMEM, an mbarrier and a tcgen05.mma, seen from inside?", (1,)),
    Lesson(4, "Seeing a pipeline", "What happens when one wait is missing?", (3,)),
    Lesson(5, "One MMA", "What does the descriptor say, and where does the result land?", (3,)),
    Lesson(6, "Scale factors in TMEM", "How does a scale byte get from memory to the tensor core?", (5,)),
    Lesson(7, "Online quantization", "How does a kernel quantize P without logarithm and division?", (2, 6)),
    Lesson(8, "From a tile to a loop", "How does an attention tile become an attention kernel?", (4, 7)),
    Lesson(9, "The TMEM bargain", "Where do scales live when all 512 columns are taken?", (8,)),
    Lesson(10, "Where the cycles go", "Why is the exponential the wall, and does E4M3 need one?", (9,)),
    Lesson(11, "Producers", "Why does an extra pass over memory cost more than eight bits save?", (1,)),
    Lesson(12, "Speedups", "Which of the published speeds can be explained?", (10, 11)),
    Lesson(13, "Backward", "How do five GEMMs share one payload?", (9,)),
    Lesson(14, "Jagged", "How do sequences of all lengths share one tensor?", (8,)),
    Lesson(15, "Does it train?", "Does a model notice?", (13,)),
)


def course_table(present: Mapping[int, str], folder: str = "") -> str:
    """The course as a Markdown table: notebooks that are there as links, the others marked "(not yet)".

    Args:
        present: number -> file name of the notebooks that exist.
        folder: put before the file names in links, with its slash.
    """
    lines = ["| | notebook | question |", "|---|---|---|"]
    for lesson in LESSONS:
        file = present.get(lesson.number)
        name = f"[{lesson.title}]({folder}{file})" if file else f"{lesson.title} (not yet)"
        lines.append(f"| {lesson.number:02d} | {name} | {lesson.question} |")
    return "\n".join(lines)
