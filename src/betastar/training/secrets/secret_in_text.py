"""SecretInText: makes secrets of a span of tokens or of a word in a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from betastar import validation
from betastar.training.secrets.abstract_secret import AbstractSecret
from betastar.training.secrets.text_field import TextField

if TYPE_CHECKING:
    from betastar.training.secrets.secret import Secret
    from betastar.training.secrets.word_forms import Tokenizer

#: What is done with records that do not hold exactly one of the candidates.
OTHERS = ("refuse", "keep")


class SecretInText(AbstractSecret):
    """The constructors of `Secret` for texts."""

    @staticmethod
    def tokens(
        start: int | str,
        candidates: Sequence[Sequence[int]],
        *,
        field: int | str | TextField = 0,
        labels: Sequence[Any] | None = None,
        name: str = "span",
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of a span of a text that could have been one of several spans.

        If candidates have different lengths, the text after the span moves, and padding takes up the difference (with padding on
        the left: the text before the span). The record keeps its number of positions; a text without room for the longest
        candidate is refused.

        Parameters
        ----------
        start : int or str
            The position at which the span starts in all records, or the name of a keyword argument of the model that holds the
            position for each record, or a mask that is 1 at the tokens of the span and 0 at others. If a mask has several spans
            in a record, they hold the same candidate and change together.
        candidates : sequence of sequences of int
            The ids of the tokens of each candidate.
        field : int, str or TextField
            Where the tokens are: the position or name of the model's argument, or a `TextField` that names labels, masks and
            padding, too.
        labels : sequence, optional
            What people call the candidates; by default their tokens.
        name : str
            What people call the secret.
        unseen : bool
            Whether candidates that no record holds are allowed.

        Returns
        -------
        Secret
            The secret.

        Raises
        ------
        TypeError, ValueError
            If the candidates are not at least two different sequences of ids, or if they have different lengths and no padding.

        Examples
        --------
        >>> import torch
        >>> from betastar.training import Records, Secret, TextField
        >>> place = Secret.tokens(1, [[7], [8, 9]], field=TextField(pad=0), labels=["Rome", "New York"], name="place")
        >>> text = Records((torch.tensor([[5, 7, 6, 0]]),), torch.tensor([1]))
        >>> place.variants(text, [0, 1]).inputs[0]
        tensor([[5, 7, 6, 0],
                [5, 8, 9, 6]])
        """
        from betastar.training.secrets.token_secret import Tokens

        if isinstance(start, bool) or not isinstance(start, int | str) or (isinstance(start, int) and start < 0):
            raise ValueError(f"start must be a position of at least 0 or the name of an argument of the model, got {start!r}.")
        spans = [_tokens(one) for one in candidates]
        shown = list(spans) if labels is None else list(labels)
        return Tokens(start, spans, _field(field), shown, name, unseen)

    @staticmethod
    def word(
        tokenizer: Tokenizer,
        field: int | str | TextField,
        candidates: Sequence[str],
        *,
        others: str = "refuse",
        name: str = "word",
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of a word that a text holds, such as a name, a place or a diagnosis.

        A text holds exactly one of the candidates, once or several times; all occurrences change together, because one of them
        would otherwise tell what the others were. Of candidates that begin alike, the longest one that fits counts.

        Parameters
        ----------
        tokenizer : tokenizer of Hugging Face or callable
            It made the tokens of the records. A function maps a text to the ids of its tokens, without those that mark the
            beginning and the end of a text.
        field : int, str or TextField
            Where the tokens are: the position or name of the model's argument, or a `TextField` that names labels, masks and
            padding, too.
        candidates : sequence of str
            The words, of one or several tokens.
        others : "refuse" or "keep"
            What is done with records that hold none of the candidates, or several different ones. "keep" leaves them as they are,
            with distance 0: nothing is measured or proved about them.
        name : str
            What people call the secret.
        unseen : bool
            Whether candidates that no record holds are allowed.

        Returns
        -------
        Secret
            The secret, with the words as labels.

        Raises
        ------
        TypeError, ValueError
            If there are fewer than two candidates, if two of them are the same tokens, or if the tokenizer does not know one.

        Examples
        --------
        >>> import torch
        >>> from betastar.training import Records, Secret
        >>> numbers = {"Ann": 1, "Bob": 2, "met": 3, "Carl": 4}
        >>> person = Secret.word(lambda text: [numbers[word] for word in text.split()], 0, ["Ann", "Bob"], name="person")
        >>> text = Records((torch.tensor([[4, 3, 1]]),), torch.tensor([1]))
        >>> person.variants(text, [0, 1]).inputs[0]
        tensor([[4, 3, 1],
                [4, 3, 2]])
        """
        from betastar.training.secrets.token_secret import Word
        from betastar.training.secrets.word_forms import HuggingFaceTokenizer, WordBoundaries, word_forms

        keeps = validation.choice("others", others, OTHERS) == "keep"
        words = [candidates] if isinstance(candidates, str) else list(candidates)
        if len(words) < 2:
            raise ValueError(f"candidates must be at least two words, got {candidates!r}.")
        forms = word_forms(tokenizer, words)
        boundaries = WordBoundaries(tokenizer) if isinstance(tokenizer, HuggingFaceTokenizer) else None
        return Word(forms, boundaries, _field(field), words, name, unseen, keeps)


def _field(field: int | str | TextField) -> TextField:
    return field if isinstance(field, TextField) else TextField(field)


def _tokens(candidate: Sequence[int]) -> tuple[int, ...]:
    """The tokens of one candidate, as whole numbers of Python."""
    given = candidate.tolist() if hasattr(candidate, "tolist") else candidate
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"candidates must be sequences of ids of tokens, got {candidate!r}; see Secret.word.")
    return tuple(given)
