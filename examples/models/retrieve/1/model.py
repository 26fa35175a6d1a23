"""Finds the documents closest to a question, by TF-IDF and the cosine between them, and writes the prompt."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

BEST = 2  # documents in the prompt: as many as so small a model can make sense of
PROMPT = "Answer the question in one or two sentences, using only this text.\n\n{context}\n\nQuestion: {question}"


class TritonPythonModel:
    def initialize(self, _args):
        text = (Path(__file__).parent / "documents.md").read_text()
        sections = [section.split("\n", 1) for section in text.split("## ")[1:]]
        self.titles = [title.strip() for title, _ in sections]
        self.bodies = [body.strip() for _, body in sections]
        self.index = Index([f"{title} {body}" for title, body in zip(self.titles, self.bodies, strict=True)])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        question = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode("utf-8")
        found = self.index.closest(question, BEST)
        prompt = PROMPT.format(context="\n".join(self.bodies[n] for n in found), question=question)
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("prompt", strings([prompt])),
                pb_utils.Tensor("sources", strings([self.titles[n] for n in found])),
            ]
        )


class Index:
    """Texts as vectors: a number a word, its count times log(texts / texts that have it), of length 1."""

    def __init__(self, texts):
        counts = [Counter(words(text)) for text in texts]
        self.columns = {word: n for n, word in enumerate(sorted(set().union(*counts)))}
        present = np.array([[word in count for word in self.columns] for count in counts])
        self.weights = np.log(len(texts) / present.sum(axis=0))
        self.vectors = np.stack([self.vector(text) for text in texts])

    def vector(self, text):
        vector = np.zeros(len(self.columns))
        for word, count in Counter(words(text)).items():
            if word in self.columns:
                vector[self.columns[word]] = count * self.weights[self.columns[word]]
        return vector / (np.linalg.norm(vector) or 1)

    def closest(self, text, count):
        return np.argsort(-(self.vectors @ self.vector(text)), kind="stable")[:count].tolist()


def words(text):
    """Lower-case words without a plural's s, so that `keys` finds `key`."""
    return [word.removesuffix("s") for word in re.findall(r"[a-z0-9]+", text.lower())]


def strings(texts):
    return np.array([text.encode("utf-8") for text in texts], dtype=np.object_)
