"""Secrets in texts: a span that could have been another one. `Tokens` and `Word` say how the span is found.

Below: which arguments hold the tokens of a text, where they hold a value of the secret, and how a tokenizer writes a word.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from betastar.training.records import TARGET, Records, argument_of
from betastar.training.secrets.secret import Secret, listed, refuse_unseen

# ---- Text fields: which arguments of a model hold the tokens of a text, and what belongs to each token.

#: The name of the criterion's target among the arguments.
CRITERION = "target"


@dataclass(frozen=True)
class TextField:
    """Where a model reads the text of a record.

    Every argument that has one entry for each token must be named, because it may have to change with the text.

    Attributes
    ----------
    ids : int or str
        The position or name of the argument that holds the ids of the tokens, one row for each record.
    labels : int or str, optional
        The argument that holds the tokens that a language model predicts; "target" is the target of the criterion.
    along : dict
        Other arguments with one entry for each token, and the entry that each has at padding: `{"attention_mask": 0}`.
    fixed : tuple
        Arguments that seem to have one entry for each token but do not change with the text, such as given position ids.
    pad : int, optional
        The id that fills up short texts. It is needed if candidates have different lengths.
    padding_side : "right" or "left"
        Where texts are filled up.
    ignored : int
        The label of tokens that are not predicted.
    next_token : bool
        Whether the label at a position is the token of the next position. By default it is the token of the same position,
        as in Hugging Face's models.

    Raises
    ------
    ValueError
        If an argument is named twice, or if padding is on neither side.

    Examples
    --------
    >>> from betastar.training import TextField
    >>> TextField("input_ids", labels="labels", along={"attention_mask": 0}, pad=0).padding_side
    'right'
    """

    ids: int | str = 0
    labels: int | str | None = None
    along: Mapping[int | str, int] = field(default_factory=dict)
    fixed: tuple[int | str, ...] = ()
    pad: int | None = None
    padding_side: Literal["right", "left"] = "right"
    ignored: int = -100
    next_token: bool = False

    def __post_init__(self) -> None:
        if self.padding_side not in ("right", "left"):
            raise ValueError(f"padding_side must be 'right' or 'left', got {self.padding_side!r}.")
        if not isinstance(self.along, Mapping):
            raise ValueError(f"along must be a dict such as {{'attention_mask': 0}}, got {self.along!r}.")
        if isinstance(self.fixed, str):
            raise ValueError(f"fixed must be a tuple of arguments, got {self.fixed!r}.")
        if len(set(self.arguments())) < len(self.arguments()):
            raise ValueError(f"ids, labels, along and fixed must name different arguments, got {self.arguments()}.")

    def arguments(self) -> list[int | str]:
        """List the arguments that this field names.

        Returns
        -------
        list
            Positions and names.
        """
        return [self.ids, *([] if self.labels is None else [self.labels]), *self.along, *self.fixed]


@dataclass(frozen=True)
class TokenEntries:
    """A tensor with one entry for each token.

    Attributes
    ----------
    key : int or str
        The argument, as `Records` calls it.
    tensor : Tensor
        The entries, (n, positions).
    filler : int
        The entry at padding.
    holds_tokens : bool
        Whether the entries are tokens, as ids and labels are.
    ahead : int
        The entry at position t belongs to the token at position t + ahead.
    """

    key: int | str
    tensor: Tensor
    filler: int
    holds_tokens: bool = False
    ahead: int = 0

    def free(self, side: str) -> Tensor:
        """The number of entries at this end of each text that are padding, (n,)."""
        used = self.tensor != self.filler
        return (~(used.flip(1) if side == "right" else used)).long().cumprod(dim=1).sum(dim=1)


def token_ids(text: TextField, records: Records, name: str) -> Tensor:
    """The tokens of the records, (n, positions). `name` is the name of the secret."""
    ids = _argument(records, text.ids, name)
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(
            f"the secret {name!r} needs ids of tokens in argument {text.ids!r}, whole numbers with one row for each record, got "
            f"{str(ids.dtype).removeprefix('torch.')} of shape {tuple(ids.shape)}."
        )
    return ids


def token_entries(text: TextField, records: Records, name: str, mask: str | None = None) -> list[TokenEntries]:
    """Everything that has one entry for each token; ids come first. `mask` is a keyword argument that marks the span."""
    ids = token_ids(text, records, name)
    entries = [TokenEntries(_key(text.ids, records), ids, -1 if text.pad is None else text.pad, holds_tokens=True)]
    along = dict(text.along)
    if mask is not None:
        along[mask] = 0
    for argument, filler in along.items():
        entries.append(TokenEntries(_key(argument, records), _argument(records, argument, name), filler))
    if text.labels is not None:
        labels = _argument(records, text.labels, name)
        entries.append(TokenEntries(_key(text.labels, records), labels, text.ignored, True, int(text.next_token)))
    for one in entries[1:]:
        widths = [ids.shape[1], ids.shape[1] - 1] if one.ahead else [ids.shape[1]]
        if one.tensor.ndim != 2 or len(one.tensor) != len(ids) or one.tensor.shape[1] not in widths:
            raise ValueError(
                f"argument {shown(one.key)!r} must have one entry for each token of {text.ids!r}, which has shape "
                f"{tuple(ids.shape)}, got shape {tuple(one.tensor.shape)}."
            )
    return entries


def refuse_unnamed(text: TextField, records: Records, name: str, mask: str | None = None) -> None:
    """Refuse arguments with one entry for each token that the field does not name: variants would leave them as they are."""
    ids = token_ids(text, records, name)
    named = {_key(argument, records) for argument in text.arguments()} | ({mask} if mask else set())
    for key, value in records.rows().items():
        next_tokens = value.ndim == 2 and value.shape[1] == ids.shape[1] - 1 > 1 and not value.is_floating_point()
        alike = ids.shape[1] in value.shape[1:] or next_tokens
        if key not in named and alike:
            raise ValueError(
                f"argument {shown(key)!r} has shape {tuple(value.shape)}, one entry for each token of {text.ids!r}, but the "
                f"TextField of {name!r} does not name it: say whether it holds the labels of a language model (labels=), moves "
                "along with the tokens (along=), or stays as it is (fixed=)."
            )


def _key(argument: int | str, records: Records) -> int | str:
    return TARGET if argument == CRITERION and CRITERION not in records.named else argument


def shown(key: int | str) -> int | str:
    """An argument as people call it."""
    return CRITERION if key == TARGET else key


def _argument(records: Records, argument: int | str, name: str) -> Tensor:
    if _key(argument, records) != TARGET:
        return argument_of(records, argument, name)
    if not isinstance(records.target, Tensor):
        raise ValueError(f"the secret {name!r} is in the target, which is no tensor but {type(records.target).__name__}.")
    return records.target


# ---- Spans: where each text holds a value of a secret, and the same text with other values there.

#: Tokens that are looked at in one go.
AT_ONCE = 1 << 21
#: The number of the value of a text that holds none, and of one that holds several different ones.
NONE, SEVERAL = -1, -2


@dataclass(frozen=True)
class Candidates:
    """The values of a secret as tokens. A value may have several forms, such as with and without a space before it.

    Attributes
    ----------
    tokens : Tensor
        (forms, values, longest); what is beyond a candidate's length is 0.
    lengths : Tensor
        (forms, values).
    """

    tokens: Tensor
    lengths: Tensor

    @staticmethod
    def of(forms: Sequence[Sequence[tuple[int, ...]]]) -> Candidates:
        """Candidates of which each form is a list with one sequence of tokens for each value."""
        lengths = torch.tensor([[len(tokens) for tokens in form] for form in forms])
        widest = int(lengths.max())
        return Candidates(
            torch.tensor([[[*tokens, *[0] * (widest - len(tokens))] for tokens in form] for form in forms]), lengths
        )

    @property
    def differ(self) -> bool:
        """Whether candidates of a form have different lengths."""
        return bool((self.lengths != self.lengths[:, :1]).any())

    def longest(self, form: int, ids: Tensor, may_end: Tensor | None = None) -> Tensor:
        """Find the longest candidate of a form that starts at each position.

        Parameters
        ----------
        form : int
            The number of the form.
        ids : Tensor
            The tokens of texts, (n, positions).
        may_end : Tensor, optional
            Whether a candidate may end before each position, (n, positions + 1).

        Returns
        -------
        Tensor
            The numbers of candidates, -1 where none starts, (n, positions).
        """
        tokens, lengths = self.tokens[form].to(ids.device), self.lengths[form].to(ids.device)
        offset, width = torch.arange(tokens.shape[1], device=ids.device), ids.shape[1]
        beyond = offset >= lengths[:, None]
        padded = functional.pad(ids.long(), (0, len(offset)), value=-1)
        found = torch.full_like(ids, -1, dtype=torch.long)
        starts = torch.isin(ids, tokens[:, 0]).nonzero()
        for rows, columns in (some.unbind(dim=1) for some in starts.split(AT_ONCE // tokens.numel() + 1)):
            window = padded[rows[:, None], columns[:, None] + offset]
            fits = ((window[:, None] == tokens) | beyond).all(dim=2)
            if may_end is not None:
                fits &= may_end[rows[:, None], (columns[:, None] + lengths).clamp(max=width)]
            size, number = (fits * lengths).max(dim=1)
            found[rows, columns] = torch.where(size > 0, number, -1)
        return found

    def to(self, device: torch.device) -> Candidates:
        """The same on a device."""
        return Candidates(self.tokens.to(device), self.lengths.to(device))


@dataclass(frozen=True)
class Spans:
    """Where texts hold a value. Each has up to k spans, and all spans of a text hold the same value.

    Attributes
    ----------
    number : Tensor
        The number of the value, `NONE` or `SEVERAL`, (n,).
    starts, forms, lengths : Tensor
        The first position of each span, the number of its form, and the length that it has, (n, k).
    present : Tensor
        Whether a text has this many spans, (n, k).
    """

    number: Tensor
    starts: Tensor
    forms: Tensor
    lengths: Tensor
    present: Tensor

    @staticmethod
    def at(found: Tensor, values: Tensor, forms: Tensor, candidates: Candidates) -> Spans:
        """Spans that start where `found`, (n, positions), with the numbers of values and forms that start there."""
        rows, columns = found.nonzero(as_tuple=True)
        rank = (found.long().cumsum(dim=1) - 1)[rows, columns]
        shape = len(found), max(1, int(rank.max()) + 1 if len(rank) else 1)
        starts, kinds, held = (torch.zeros(shape, dtype=torch.long, device=found.device) for _ in range(3))
        present = torch.zeros(shape, dtype=torch.bool, device=found.device)
        starts[rows, rank], kinds[rows, rank], held[rows, rank] = columns, forms[rows, columns], values[rows, columns]
        present[rows, rank] = True
        first = held[:, :1]
        alike = ((held == first) | ~present).all(dim=1)
        number = torch.where(present[:, 0], torch.where(alike, held[:, 0], SEVERAL), NONE)
        there = present & (number >= 0)[:, None]
        return Spans(number, starts, kinds, candidates.lengths.to(found.device)[kinds, held] * there, there)

    def growth(self, candidates: Candidates) -> Tensor:
        """How many positions more than the text has it needs with its longest candidate, (n,)."""
        forms = len(candidates.lengths)
        times = torch.stack([((self.forms == form) & self.present).sum(dim=1) for form in range(forms)], dim=1)
        kinds, which = times.unique(dim=0, return_inverse=True)
        longest = (kinds.cpu() @ candidates.lengths.cpu()).amax(dim=1).to(times.device)
        return longest[which] - self.lengths.sum(dim=1)


@dataclass(frozen=True)
class Splices:
    """The spans of texts with candidates of other lengths in them.

    Attributes
    ----------
    starts, lengths : Tensor
        Of each span with each kind of candidates, (n, kinds, k).
    growth : Tensor
        The number of positions by which a text gets longer, (n, kinds).
    which : Tensor
        The kind of each value, (values,). Values whose candidates are as long as each other are of one kind.
    left : bool
        Whether padding is on the left, so that the end of a text stays where it is.
    """

    starts: Tensor
    lengths: Tensor
    growth: Tensor
    which: Tensor
    left: bool

    @staticmethod
    def of(spans: Spans, candidates: Candidates, values: Tensor, side: str) -> Splices:
        """Put values into the spans of texts."""
        kinds, which = candidates.lengths[:, values].T.unique(dim=0, return_inverse=True)
        lengths = kinds.T[spans.forms].movedim(2, 1) * spans.present[:, None]
        change = lengths - spans.lengths[:, None]
        growth, left = change.sum(dim=2), side == "left"
        starts = spans.starts[:, None] + change.cumsum(dim=2) - change - (growth[:, :, None] if left else 0)
        return Splices(starts, lengths, growth, which, left)

    def sources(self, spans: Spans, extent: int) -> Tensor:
        """The position of the text from which each position of a variant comes, (n, kinds, extent).

        All tokens of a span come from the last token of the span that was there: they have the same entries, such as a mask.
        """
        position = torch.arange(extent, device=self.starts.device)
        source = position.expand(*self.growth.shape, -1) + (self.growth[:, :, None] if self.left else 0)
        for k in range(spans.starts.shape[1]):
            there, length = spans.present[:, k, None, None], self.lengths[:, :, k, None]
            offset = position - self.starts[:, :, k, None]
            source = source - (there & (offset >= length)) * (length - spans.lengths[:, k, None, None])
            last = (spans.starts + spans.lengths)[:, k, None, None] - 1
            source = torch.where(there & (offset >= 0) & (offset < length), last, source)
        return source


def spliced(entries: Sequence[TokenEntries], spans: Spans, candidates: Candidates, values: Tensor, side: str) -> list[Tensor]:
    """Each of the entries with the values in turn, (n · values, positions).

    What follows a span moves (with padding on the left: what precedes it). Positions that this leaves empty are padding, and what
    would move beyond the end must have been padding.
    """
    splices = Splices.of(spans, candidates, values, side)
    source = splices.sources(spans, max(one.tensor.shape[1] + one.ahead for one in entries))
    made = []
    for one in entries:
        moved = _moved(one, source).index_select(1, splices.which)
        if one.holds_tokens:
            _write_tokens(moved, one, spans, splices, candidates.tokens[:, values])
        made.append(moved.flatten(0, 1))
    return made


def _moved(one: TokenEntries, source: Tensor) -> Tensor:
    """The entries from `source`, (n, kinds, positions)."""
    width = one.tensor.shape[1]
    index = source[:, :, one.ahead : one.ahead + width] - one.ahead
    rows = one.tensor[:, None].expand(-1, source.shape[1], -1)
    inside = (index >= 0) & (index < width)
    return torch.where(inside, rows.gather(2, index.clamp(0, width - 1)), one.filler)


def _write_tokens(made: Tensor, one: TokenEntries, spans: Spans, splices: Splices, tokens: Tensor) -> None:
    """Write tokens, (forms, values, longest), into variants, (n, values, positions). Labels that are ignored stay so."""
    width = made.shape[2]
    for k in range(spans.starts.shape[1]):
        starts, lengths = splices.starts[:, splices.which, k], splices.lengths[:, splices.which, k]
        for offset in range(tokens.shape[2]):
            place = starts + offset - one.ahead
            wanted = (offset < lengths) & (place >= 0) & (place < width)
            index = place.clamp(0, width - 1)[:, :, None]
            old = made.gather(2, index)[:, :, 0]
            new = tokens[spans.forms[:, k], :, offset].to(made.dtype)
            made.scatter_(2, index, torch.where(wanted & (old != one.filler), new, old)[:, :, None])


# ---- Words: how a tokenizer writes a word in a text, and between which tokens words end.

#: Marks of a space before a token, in byte-level BPE and in SentencePiece; the mark of a token within a word, in WordPiece.
SPACES, WITHIN = ("Ġ", "▁"), "##"


#: A tokenizer of Hugging Face, or a function from a text to the ids of its tokens.
Tokenizer: TypeAlias = Any


def is_hugging_face(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer is one of Hugging Face, which knows how its tokens are written."""
    return hasattr(tokenizer, "convert_ids_to_tokens")


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
    if not is_hugging_face(tokenizer) and not callable(tokenizer):
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
    contexts = [" ", " ("] if is_hugging_face(tokenizer) else [" "]
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
    if is_hugging_face(tokenizer):
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    given = tokenizer(text)
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

    def __init__(self, tokenizer: Tokenizer) -> None:
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


def _letters(tokenizer: Tokenizer, token: str) -> str:
    """A token as people read it, without the mark of a space. Byte-level BPE writes letters beyond ASCII as other letters."""
    text = token.lstrip("".join(SPACES))
    return text if text.isascii() else tokenizer.convert_tokens_to_string([text])


# ---- Checks: what is refused about candidates in a text, and about texts that hold them.


def refuse_candidates(text: TextField, forms: Sequence[Sequence[tuple[int, ...]]], labels: Sequence[object], name: str) -> None:
    """Refuse candidates that are fewer than two, empty, alike, or that hold tokens of padding."""
    if len(labels) < 2 or len(labels) != len(forms[0]):
        raise ValueError(f"candidates must be at least two with one label each, got {len(forms[0])} and {len(labels)} labels.")
    seen: dict[tuple[int, ...], int] = {}
    for form in forms:
        for number, tokens in enumerate(form):
            label = labels[number]
            if not tokens:
                raise ValueError(f"candidates must have at least one token, but {label!r} of {name!r} has none.")
            if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in tokens):
                raise ValueError(f"candidates must be ids of tokens, whole numbers of at least 0, got {tokens} for {label!r}.")
            if tokens in seen:
                other = labels[seen[tokens]]
                raise ValueError(
                    f"candidates must differ, but {other!r} and {label!r} of {name!r} are the same tokens to the model, "
                    f"{list(tokens)}."
                )
            seen[tokens] = number
            for what, filler in (("pad", text.pad), ("ignored", text.ignored)):
                if filler in tokens:
                    raise ValueError(f"candidates must not contain {what}={filler}, but {label!r} of {name!r} does.")
    if text.pad is None and any(len({len(tokens) for tokens in form}) > 1 for form in forms):
        raise ValueError(
            f"pad must be the id that fills up short texts, because the candidates of {name!r} have different lengths, got None."
        )


def require_entries(entries: Sequence[TokenEntries], spans: Spans, text: TextField, candidates: Candidates, name: str) -> None:
    """Refuse spans within which the entries of tokens are not those of a whole span."""
    ids = entries[0].tensor
    offset = torch.arange(candidates.tokens.shape[2], device=ids.device)
    inside = (offset < spans.lengths[:, :, None]).flatten(1)
    places = (spans.starts[:, :, None] + offset).flatten(1)
    for one in entries[1:]:
        index = places - one.ahead
        held = one.tensor.gather(1, index.clamp(0, one.tensor.shape[1] - 1))
        there = inside & (index >= 0)
        if one.holds_tokens:
            tokens = ids.gather(1, places.clamp(max=ids.shape[1] - 1))
            shape = (*spans.starts.shape, len(offset))
            trained = ((held == tokens) | ~there).reshape(shape).all(dim=2)
            ignored = ((held == one.filler) | ~there).reshape(shape).all(dim=2)
            wrong = ~(trained | ignored).all(dim=1)
            wanted = f"the tokens of the span, or {one.filler} at all of them (see next_token and ignored of TextField)"
        else:
            last = one.tensor.gather(1, (spans.starts + spans.lengths - 1).clamp(min=0))
            wrong = ((held != last.repeat_interleave(len(offset), dim=1)) & there).any(dim=1)
            wanted = "the same number at all tokens of the span"
        _refuse(wrong, f"argument {shown(one.key)!r} must hold {wanted}, which it does not for record", name)
    if candidates.differ and any(one.ahead for one in entries):
        first = (spans.present & (spans.starts == 0)).any(dim=1)
        _refuse(first, "a text must not begin with the span if labels are those of the next token, but so does record", name)


def require_room(entries: Sequence[TokenEntries], spans: Spans, text: TextField, candidates: Candidates, name: str) -> None:
    """Refuse texts that have no room for the longest candidate, of which variants would lose tokens."""
    growth = spans.growth(candidates)
    ids = entries[0].tensor
    for one in entries:
        # Labels that see one token more than the ids do: this token would have to move into the ids.
        beyond = int(text.padding_side == "right" and one.tensor.shape[1] + one.ahead > ids.shape[1])
        short = growth + beyond - one.free(text.padding_side)
        wrong = (short > 0) & spans.present[:, 0]
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"record {row} has no room for the longest candidate of {name!r}: argument {shown(one.key)!r} has "
                f"{one.tensor.shape[1]} positions, and the text would need {int(short[row])} more. Pad texts to "
                f"{one.tensor.shape[1] + int(short.max())} positions or cut them earlier (padding is {one.filler} on the "
                f"{text.padding_side})."
            )


def _refuse(wrong: Tensor, sentence: str, name: str) -> None:
    if wrong.any():
        raise ValueError(f"{sentence} {int(wrong.nonzero()[0])} of the secret {name!r}.")


# ---- Secrets


class TextSecret(Secret):
    """A span of a text that could have been one of several candidates. All of its occurrences in a text change together.

    `forms` has one list for each form of the candidates, with one sequence of tokens for each value.
    """

    #: Whether records that do not hold exactly one of the candidates are left as they are.
    keeps_others = False
    #: Where the span is; empty if it may be anywhere.
    start: int | str = ""
    #: What to do about a record that does not hold exactly one of the candidates.
    way_out = "Leave such records out, or describe the secret with Secret.function."

    def __init__(
        self, field: int | str | TextField, forms: Sequence[Sequence[tuple[int, ...]]], labels: list[Any], name: str, unseen: bool
    ) -> None:
        self.text = field if isinstance(field, TextField) else TextField(field)
        refuse_candidates(self.text, forms, labels, name)
        self.candidates = Candidates.of(forms)
        self.labels, self.name, self.unseen = labels, name, unseen
        self._tokens = torch.tensor(sorted({token for form in forms for tokens in form for token in tokens}))

    @abstractmethod
    def find(self, records: Records) -> Spans:
        """Find the spans of the records. Records are not refused here.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Spans
            The spans.
        """

    def concerned(self, records: Records) -> Tensor:  # those that hold exactly one of the candidates
        return self.find(records).number.cpu() >= 0

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        return self._variants(records, self._spans(records), values)

    def own(self, records: Records) -> Tensor:
        return self._spans(records).number.clamp(min=0).cpu()

    def shares(self, records: Records) -> Tensor:
        """The mean over the values must not tell which of them the record holds: every batch is checked."""
        self.check(records, complete=False)
        return super().shares(records)

    def tables(self) -> tuple[Tensor | None, ...]:
        return self.candidates.tokens, self.candidates.lengths

    def digest(self) -> str:
        return sha256(repr((super().digest(), self.text, self.keeps_others, self.start)).encode()).hexdigest()

    def mask(self, records: Records) -> str | None:
        """Name the keyword argument that is 1 at the tokens of the span and 0 at others.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        str or None
            None if there is no such argument.
        """
        return None

    def check(self, records: Records, complete: bool) -> None:
        """Refuse records that hold none of the candidates, and records with a variant whose span would not be found again."""
        refuse_unnamed(self.text, records, self.name, self.mask(records))
        spans = self._spans(records)
        self._require_found_again(records, spans)
        if complete and not self.unseen:
            held = set(spans.number.unique().tolist())
            refuse_unseen([label for number, label in enumerate(self.labels) if number not in held], self.name)

    def _variants(self, records: Records, spans: Spans, values: Sequence[int]) -> Records:
        entries = token_entries(self.text, records, self.name, self.mask(records))
        device = entries[0].tensor.device
        numbers = torch.as_tensor(list(values), dtype=torch.long, device=device)
        made = spliced(entries, spans, self.candidates.to(device), numbers, self.text.padding_side)
        changed = {one.key: tensor for one, tensor in zip(entries, made, strict=True)}
        return records.repeat(len(values)).changed(lambda key, value: changed.get(key, value))

    def _spans(self, records: Records) -> Spans:
        """The spans of records that are as they must be, so that nothing of them gets lost in variants."""
        spans = self.find(records)
        if not self.keeps_others and bool((spans.number < 0).any()):
            row = int((spans.number < 0).nonzero()[0])
            found = "several different ones" if int(spans.number[row]) == SEVERAL else "none of them"
            raise ValueError(
                f"each record must hold one of the candidates of {self.name!r} ({listed(self.labels)}), but record {row} holds "
                f"{found}. {self.way_out}"
            )
        entries = token_entries(self.text, records, self.name, self.mask(records))
        require_entries(entries, spans, self.text, self.candidates, self.name)
        if self.candidates.differ:
            require_room(entries, spans, self.text, self.candidates, self.name)
        return spans

    def _require_found_again(self, records: Records, spans: Spans) -> None:
        """Refuse a record of which a variant would be read as another one, by the tokens beside its span.

        That can happen only if a token beside the span is one of the candidates' tokens.
        """
        if self.mask(records):
            return
        ids = token_ids(self.text, records, self.name)
        ends, width = spans.starts + spans.lengths, ids.shape[1]
        before = ids.gather(1, (spans.starts - 1).clamp(min=0))
        after = ids.gather(1, ends.clamp(max=width - 1))
        tokens = self._tokens.to(ids.device)
        beside = (torch.isin(before, tokens) & (spans.starts > 0)) | (torch.isin(after, tokens) & (ends < width))
        doubtful = (beside & spans.present).any(dim=1).nonzero().flatten()
        for rows in doubtful.split(max(1, AT_ONCE // (self.count * width))):
            self._find_again(records.take(rows), rows)

    def _find_again(self, records: Records, rows: Tensor) -> None:
        """Find the spans of all variants, which must be where they were put. `rows` are the numbers of the records."""
        spans = self.find(records)
        made = self._variants(records, spans, range(self.count))
        again = self.find(made)
        device = spans.starts.device
        numbers = torch.arange(self.count, device=device)
        wanted = Splices.of(spans, self.candidates.to(device), numbers, self.text.padding_side)
        starts = wanted.starts[:, wanted.which]
        found = again.number == numbers.repeat(len(rows))
        if again.starts.shape[1] == spans.starts.shape[1]:
            there = spans.present.repeat_interleave(self.count, dim=0)
            forms = spans.forms.repeat_interleave(self.count, dim=0)
            same = ((again.starts == starts.flatten(0, 1)) & (again.forms == forms)) | ~there
            found &= (same & (again.present == there)).all(dim=1)
        else:
            found &= again.present.sum(dim=1) == spans.present.sum(dim=1).repeat_interleave(self.count)
        if not found.all():
            wrong = int((~found).nonzero()[0])
            raise ValueError(
                f"record {int(rows[wrong // self.count])} with {self.labels[wrong % self.count]!r} as its {self.name!r} would be "
                "read as another one, because of the tokens beside it: which texts the attacker considers must not depend on the "
                "secret. Mark the span (Secret.tokens with the name of a mask), or leave the record out."
            )


class Tokens(TextSecret):
    """A span at a given place: a position, or a keyword argument with a position for each record or a mask of the span."""

    def __init__(
        self,
        start: int | str,
        candidates: Sequence[tuple[int, ...]],
        field: int | str | TextField,
        labels: list[Any],
        name: str,
        unseen: bool,
    ) -> None:
        super().__init__(field, [candidates], labels, name, unseen)
        self.start = start
        if isinstance(start, int):
            self._refuse_positions()

    def mask(self, records: Records) -> str | None:
        if isinstance(self.start, int) or argument_of(records, self.start, self.name).ndim != 2:
            return None
        return self.start

    def find(self, records: Records) -> Spans:
        ids = token_ids(self.text, records, self.name)
        starts = self._marked(records, ids)
        if starts.ndim == 2:
            return self._masked(ids, starts)
        if len(starts) and not 0 <= int(starts.min()) <= int(starts.max()) < ids.shape[1]:
            outside = int(starts.max()) if int(starts.max()) >= ids.shape[1] else int(starts.min())
            raise ValueError(
                f"the secret {self.name!r} starts at position {outside}, but texts have positions 0 to {ids.shape[1] - 1}."
            )
        longest = self.candidates.tokens.shape[2]
        window = starts[:, None] + torch.arange(longest, device=ids.device)
        tokens = torch.where(window < ids.shape[1], ids.gather(1, window.clamp(max=ids.shape[1] - 1)), -1)
        value = self.candidates.longest(0, tokens)[:, :1]
        found = torch.zeros_like(ids, dtype=torch.bool).scatter(1, starts[:, None], value >= 0)
        return Spans.at(found, value.expand_as(ids), torch.zeros_like(ids), self.candidates)

    def _marked(self, records: Records, ids: Tensor) -> Tensor:
        """The first position of each record's span, (n,), or a mask of it, (n, positions)."""
        if isinstance(self.start, int):
            return torch.full((len(ids),), self.start, dtype=torch.long, device=ids.device)
        given = argument_of(records, self.start, self.name)
        if given.shape not in (ids.shape, ids.shape[:1]) or given.is_floating_point():
            raise ValueError(
                f"argument {self.start!r} must hold the first position of each record's span, or 1 at its tokens and 0 at "
                f"others, got {str(given.dtype).removeprefix('torch.')} of shape {tuple(given.shape)} for ids of shape "
                f"{tuple(ids.shape)}."
            )
        if given.ndim == 2 and not bool(((given == 0) | (given == 1)).all()):
            raise ValueError(f"argument {self.start!r} must be 1 at the tokens of the span and 0 at others.")
        if given.ndim == 1:
            self._refuse_positions()
        return given.long()

    def _refuse_positions(self) -> None:
        if self.text.padding_side == "left" and self.candidates.differ:
            raise ValueError(
                f"start must name a mask of the span for {self.name!r}: with padding on the left, candidates of different "
                f"lengths start at different positions, got {self.start!r}."
            )

    def _masked(self, ids: Tensor, mask: Tensor) -> Spans:
        """Spans of ones in a mask, which must be candidates as a whole."""
        edges = functional.pad(mask, (1, 1)).diff(dim=1)
        begins, ends = edges[:, :-1] == 1, edges == -1
        value = self.candidates.longest(0, torch.where(mask == 1, ids, -1), may_end=ends)
        # A run of ones that is no candidate makes the record one that holds none of them.
        broken = (begins & (value < 0)).any(dim=1, keepdim=True)
        return Spans.at(begins & ~broken, value, torch.zeros_like(ids), self.candidates)


class Word(TextSecret):
    """A word that is found by the candidates. `forms` are those of `word_forms`."""

    def __init__(
        self,
        forms: Sequence[Sequence[tuple[int, ...]]],
        boundaries: WordBoundaries | None,
        field: int | str | TextField,
        labels: list[Any],
        name: str,
        unseen: bool,
        keeps_others: bool,
    ) -> None:
        super().__init__(field, forms, labels, name, unseen)
        self.keeps_others = keeps_others
        self._boundaries = boundaries
        self._without_space = [boundaries is not None and boundaries.without_space(form) for form in forms]

    way_out = 'Leave such records out, or keep them as they are with others="keep": nothing is then said about them.'

    def find(self, records: Records) -> Spans:
        ids = token_ids(self.text, records, self.name)
        lengths = self.candidates.lengths.to(ids.device)
        may_end = None if self._boundaries is None else self._boundaries.may_end(ids)
        value, form, length = (torch.full_like(ids, fill, dtype=torch.long) for fill in (-1, 0, 0))
        for number, without_space in enumerate(self._without_space):
            found = self.candidates.longest(number, ids, may_end)
            if self._boundaries is not None and without_space:
                found = torch.where(self._boundaries.may_start(ids), found, -1)
            size = torch.where(found >= 0, lengths[number][found], 0)
            longer = size > length
            value, form = torch.where(longer, found, value), torch.where(longer, number, form)
            length = torch.where(longer, size, length)
        return Spans.at(_leftmost(length), value, form, self.candidates)


def _leftmost(length: Tensor) -> Tensor:
    """Of spans that overlap, those that are met first from left to right; `length` is 0 where none starts, (n, positions)."""
    kept = torch.zeros_like(length, dtype=torch.bool)
    free = torch.zeros(len(length), dtype=torch.long, device=length.device)
    for position in (length > 0).any(dim=0).nonzero().flatten().tolist():
        kept[:, position] = (length[:, position] > 0) & (position >= free)
        free = torch.where(kept[:, position], position + length[:, position], free)
    return kept
