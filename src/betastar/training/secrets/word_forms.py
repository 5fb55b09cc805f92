"""How a tokenizer writes a word in a text, and between which tokens words end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

#: Marks of a space before a token, in byte-level BPE and in SentencePiece; the mark of a token within a word, in WordPiece.
SPACES, WITHIN = ("Ġ", "▁"), "##"


@runtime_checkable
class HuggingFaceTokenizer(Protocol):
    """What is used of a tokenizer of Hugging Face."""

    unk_token_id: int | None

    def __len__(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...
    def convert_tokens_to_string(self, tokens: list[str]) -> str: ...


Tokenizer = HuggingFaceTokenizer | Callable[[str], Sequence[int]]


def word_forms(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[tuple[int, ...]]]:
    """The tokens of each word at the beginning of a text and, if these are others, after a space and after punctuation.

    Parameters
    ----------
    tokenizer : tokenizer of Hugging Face or callable
        Maps a text to the ids of its tokens.
    words : sequence of str
        The words.

    Returns
    -------
    list
        One list for each form, with the tokens of each word.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer) and not callable(tokenizer):
        raise TypeError(f"tokenizer must be one of Hugging Face or a function from a text to ids, got {tokenizer!r}.")
    wrong = [word for word in words if not isinstance(word, str) or not word.strip() or word != word.strip()]
    if wrong:
        raise ValueError(f"candidates must be words without spaces around them, got {wrong[0]!r}.")
    alone = [_ids(tokenizer, word) for word in words]
    unknown = getattr(tokenizer, "unk_token_id", None)
    for word, tokens in zip(words, alone, strict=True):
        if unknown is not None and unknown in tokens:
            raise ValueError(
                f"candidates must be known to the tokenizer, but {word!r} has the token of unknown words, {unknown}."
            )
    forms = [alone]
    # The first candidate is a word that the tokenizer is known to take. A function may know no punctuation.
    contexts = [" ", " ("] if isinstance(tokenizer, HuggingFaceTokenizer) else [" "]
    for context in contexts:
        before = alone[0] if context == " " else _ids(tokenizer, words[0] + context)
        both = [_ids(tokenizer, words[0] + context + word) for word in words]
        if any(tokens[: len(before)] != before for tokens in both):
            if context != " ":
                continue  # the tokenizer joins punctuation with words
            raise ValueError(
                f"tokenizer must give a text's tokens and nothing else, but {words[0]!r} is {list(before)} and "
                f"{words[0] + context + words[0]!r} is {list(both[0])}: leave out the tokens that begin and end a text."
            )
        form = [tokens[len(before) :] for tokens in both]
        if form not in forms:
            forms.append(form)
    for number, word in enumerate(words):
        if len({form[number] for form in forms}) < len(forms):
            raise ValueError(
                f"candidates must all be written alike, but {word!r} has the same tokens at different places of a text, and "
                "other candidates do not."
            )
    return forms


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text, without those that mark its beginning and end."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    given: Any = tokenizer(text)
    try:
        return tuple(int(token) for token in given)
    except (TypeError, ValueError):
        raise TypeError(f"tokenizer must return ids of tokens, got {type(given).__name__} for {text!r}.") from None


class WordBoundaries:
    """Between which tokens a word may begin and end, so that "Ann" is not found in "Annabel".

    Parameters
    ----------
    tokenizer : tokenizer of Hugging Face
        It knows how its tokens are written.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
        self._spaced = {number for number, token in enumerate(tokens) if token.startswith(SPACES)}
        if self._spaced:
            begins = [not token.startswith(SPACES) and _letters(tokenizer, token)[:1].isalnum() for token in tokens]
        else:
            begins = [token.startswith(WITHIN) and len(token) > len(WITHIN) for token in tokens]
        self._begins_within = torch.tensor(begins)
        self._ends_within = torch.tensor([_letters(tokenizer, token)[-1:].isalnum() for token in tokens])

    def without_space(self, form: Sequence[tuple[int, ...]]) -> bool:
        """Say whether words in this form begin without a space, so that they could be the end of a longer word.

        Parameters
        ----------
        form : sequence of tuple of int
            The tokens of words.

        Returns
        -------
        bool
            False for a tokenizer whose tokens within a word differ from those that begin one.
        """
        return bool(self._spaced) and any(tokens[0] not in self._spaced for tokens in form)

    def may_end(self, ids: Tensor) -> Tensor:
        """Say whether a word may end before each position, and at the end of a text.

        Parameters
        ----------
        ids : Tensor
            The tokens of texts, (n, positions).

        Returns
        -------
        Tensor
            (n, positions + 1).
        """
        return functional.pad(~self._look_up(self._begins_within, ids), (0, 1), value=True)

    def may_start(self, ids: Tensor) -> Tensor:
        """Say whether a word may begin at each position if no space comes before it.

        Parameters
        ----------
        ids : Tensor
            The tokens of texts, (n, positions).

        Returns
        -------
        Tensor
            (n, positions).
        """
        return functional.pad(~self._look_up(self._ends_within, ids), (1, 0), value=True)[:, :-1]

    def _look_up(self, table: Tensor, ids: Tensor) -> Tensor:
        return table.to(ids.device)[ids.clamp(0, len(table) - 1)]


def _letters(tokenizer: HuggingFaceTokenizer, token: str) -> str:
    """A token as people read it, without the mark of a space. Byte-level BPE writes letters beyond ASCII as other letters."""
    text = token.lstrip("".join(SPACES))
    return text if text.isascii() else tokenizer.convert_tokens_to_string([text])
