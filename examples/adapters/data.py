"""Made-up data for the example fine-tunes: `examples(task, split)` gives prompts with the answer that is wanted.

The two splits share no prompt, by construction: they draw from different names, companies, tables and sentences, which
the test suite asserts. Everything is invented; domains end in `.example`, phone numbers come from ranges that are kept
for fiction.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["SPLITS", "TASKS", "Example", "Table", "examples"]

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Table:
    """A table that SQL questions are asked about.

    Attributes:
        name: Of the table, which is also the plural of what it holds.
        singular: Of what it holds.
        label: The column that names a row.
        category: A text column with few values.
        values: Of `category`.
        number: A numeric column.
        meaning: What `number` is called in a question.
    """

    name: str
    singular: str
    label: str
    category: str
    values: tuple[str, ...]
    number: str
    meaning: str

    @property
    def schema(self) -> str:
        """As a prompt shows it."""
        return f"{self.name}({self.label}, {self.category}, {self.number})"


@dataclass(frozen=True)
class Example:
    """One prompt and its answer.

    Attributes:
        prompt: The user's message, the same for the base and for the fine-tune.
        answer: What the fine-tune is trained to say.
        table: For SQL, the table that it is about.
    """

    prompt: str
    answer: str
    table: Table | None = None


def examples(task: str, split: str, seed: int = 0) -> Iterator[Example]:
    """Examples of a task without end and without repetition of a prompt, the same ones for the same seed."""
    chance = random.Random(f"{task}/{split}/{seed}")  # noqa: S311 - repeatable on purpose
    seen: set[str] = set()
    while True:
        example = TASKS[task](chance, split)
        if example.prompt not in seen:
            seen.add(example.prompt)
            yield example


# --- contacts -------------------------------------------------------------------------------------------------------


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = {
    "train": _words(
        "Ana Ben Carla Dmitri Eva Farid Greta Hugo Ines Jonas Kira Luca Mara Nils Olga Pavel Rosa Stefan Tara Viktor"
    ),
    "test": _words(
        "Amir Bela Clara Emil Freya Goran Hanna Ivo Julia Leon Mila Noor Otto Paula Ravi Selma Theo Uma Wanda Yusuf"
    ),
}
_LAST = {
    "train": _words(
        "Alder Birk Cohen Dietz Ekman Fuchs Gomez Haas Ito Jansen Koch Lind Meyer Novak Ortiz Peters Quast Rossi"
    ),
    "test": _words(
        "Adler Bauer Costa Duval Ebert Ferrer Grahn Holm Ivens Jung Kovac Lopez Marsh Nolan Olsen Prinz Reuter Silva"
    ),
}
_COMPANY = {
    "train": _words("Acme Borealis Cobalt Delphi Ember Fjord Granite Helix Juniper Kestrel Lumen Meridian"),
    "test": _words("Aspen Basalt Cinder Dune Everest Falcon Harbor Indigo Lagoon Mistral Nimbus Orchard"),
}
_CONTACT = {
    "train": (
        "Please add {name} from {company}. Mail {email}, phone {phone}.",
        "Hi, this is {name} ({company}). You can reach me at {email} or call {phone}.",
        "New contact: {name}, {company}, {phone}, {email}",
        "{company} has a new buyer called {name}; the number is {phone} and the address is {email}.",
        "Met {name} of {company} at the fair. Phone: {phone}. Email: {email}.",
        "Best regards, {name} | {company} | {email} | {phone}",
    ),
    "test": (
        "I spoke with {name} today, who works for {company}. Write to {email} or ring {phone}.",
        "{name} / {company} / tel. {phone} / {email}",
        "For orders at {company} ask for {name}: {email}, {phone}.",
    ),
}


_SYLLABLES = _words("ba ce do el en fi gra hu il ja ko la mi no or pa qui ro su ta ul ve wi xa yu ze st er ch in")
_INVENTED = 0.7  # the share of words that are made of syllables, so that copying is learnt and not a list of names


def _word(chance: random.Random, pool: dict[str, tuple[str, ...]], split: str) -> str:
    """A name for this split; in training mostly one that nobody has, and never one that is held out."""
    if split == "train" and chance.random() < _INVENTED:
        word = "".join(chance.choices(_SYLLABLES, k=chance.randint(2, 3))).capitalize()
        return word if word not in pool["test"] else _word(chance, pool, split)
    return chance.choice(pool[split])


def _contact(chance: random.Random, split: str) -> Example:
    first, last, company = (_word(chance, pool, split) for pool in (_FIRST, _LAST, _COMPANY))
    email = f"{first}.{last}@{company}.example".lower()
    phone = chance.choice(
        (f"+1 {chance.randint(201, 989)} 555 01{chance.randint(10, 99)}", f"+44 20 7946 0{chance.randint(100, 999)}")
    )
    contact = {"name": f"{first} {last}", "company": company, "email": email, "phone": phone}
    text = chance.choice(_CONTACT[split]).format_map(contact)
    prompt = f"Extract the contact as JSON with the keys name, company, email and phone.\n{text}"
    return Example(prompt, json.dumps(contact))


# --- triage ---------------------------------------------------------------------------------------------------------

_ITEM = {
    "train": ("kettle", "lamp", "backpack", "keyboard", "jacket", "blender", "tent", "headset", "printer", "bicycle"),
    "test": ("toaster", "monitor", "suitcase", "drone", "camera", "heater", "scooter", "speaker", "router", "desk"),
}
_OPENING = {
    "train": ("Hello,", "Hi there,", "Good morning,", "Dear team,", ""),
    "test": ("Hey,", "To whom it may concern,", "Good evening,", ""),
}
_CLOSING = {
    "train": ("Thanks!", "Please help.", "Kind regards", "I look forward to your answer.", ""),
    "test": ("Please get back to me.", "Cheers", "Many thanks in advance.", ""),
}
_MESSAGES = {
    "billing": {
        "train": (
            "I was charged twice for the {item}.",
            "My invoice for the {item} shows the wrong amount.",
            "Why is there a fee of {amount} euros on my card statement?",
            "Can I pay for the {item} in instalments?",
            "The discount code was not taken off the price of the {item}.",
            "I need a receipt with my tax number for the {item}.",
            "You took {amount} euros from my account and I do not know why.",
            "My credit card was declined when I paid for the {item}.",
        ),
        "test": (
            "There are two payments of {amount} euros for one {item} on my bank statement.",
            "The bill for the {item} is {amount} euros too high.",
            "Could you send me the invoice for the {item} again?",
            "I paid with a voucher but was still charged {amount} euros.",
        ),
    },
    "shipping": {
        "train": (
            "Where is my {item}? I ordered it {days} days ago.",
            "The tracking page has not changed for {days} days.",
            "The courier left the parcel with the {item} at the wrong house.",
            "Can the {item} be delivered on Saturday?",
            "I need to change the delivery address for my {item}.",
            "My parcel is stuck in customs for {days} days.",
            "How long does it take to send a {item} to Norway?",
            "The driver did not ring, and my package went back to the depot.",
        ),
        "test": (
            "My {item} should have arrived {days} days ago.",
            "The tracking number for the {item} does not work.",
            "Please send the {item} to my office and not to my home.",
            "The parcel was delivered to a neighbour I do not know.",
        ),
    },
    "technical": {
        "train": (
            "My {item} does not switch on any more.",
            "The {item} makes a strange noise after {days} minutes.",
            "The app shows error {amount} when I connect the {item}.",
            "How do I reset the {item} to its factory settings?",
            "The display of the {item} flickers all the time.",
            "After the update the {item} no longer pairs with my phone.",
            "The battery of the {item} is empty after {days} minutes.",
            "Which software version does the {item} need?",
        ),
        "test": (
            "The {item} stops working after {days} minutes.",
            "I cannot connect the {item} to my wireless network.",
            "The {item} shows error code {amount} and then shuts down.",
            "Since the last update the buttons of the {item} do nothing.",
        ),
    },
    "returns": {
        "train": (
            "I want to send the {item} back.",
            "The {item} is too small, can I exchange it?",
            "How many days do I have to return the {item}?",
            "I do not like the colour and would like to return the {item}.",
            "Please send me a return label for the {item}.",
            "I ordered the wrong {item} and want to swap it.",
            "Can I bring the {item} back to your store?",
            "I returned the {item} {days} days ago, did you get it back?",
        ),
        "test": (
            "I changed my mind and would like to give the {item} back.",
            "Is it possible to exchange the {item} for a bigger one?",
            "Where do I find the form for returning the {item}?",
            "The {item} was a gift and I want to send it back within {days} days.",
        ),
    },
}


def _triage(chance: random.Random, split: str) -> Example:
    team = chance.choice(list(_MESSAGES))
    message = chance.choice(_MESSAGES[team][split]).format(
        item=chance.choice(_ITEM[split]), amount=chance.randint(11, 499), days=chance.randint(3, 29)
    )
    parts = (chance.choice(_OPENING[split]), message, chance.choice(_CLOSING[split]))
    text = " ".join(part for part in parts if part)
    teams = ", ".join(list(_MESSAGES)[:-1]) + f" or {list(_MESSAGES)[-1]}"
    return Example(f"Which team should answer this message: {teams}? Answer with one word.\n{text}", team)


# --- sql ------------------------------------------------------------------------------------------------------------


def _table(line: str) -> Table:
    name, singular, label, category, values, number, meaning = line.split("|")
    return Table(name, singular, label, category, tuple(values.split(",")), number, meaning)


_TABLES = {
    "train": tuple(
        _table(line)
        for line in (
            "films|film|title|genre|drama,comedy,horror,western|minutes|length",
            "cities|city|name|country|Spain,Japan,Kenya,Chile|people|population",
            "books|book|title|language|Polish,French,Hindi,Dutch|pages|page count",
            "orders|order|id|status|open,paid,shipped,lost|amount|amount",
            "cars|car|model|color|red,blue,white,black|price|price",
            "players|player|name|team|Lions,Hawks,Bears,Wolves|goals|number of goals",
            "rivers|river|name|continent|Asia,Africa,Europe,America|length|length",
            "students|student|name|subject|physics,history,music,law|score|score",
            "songs|song|title|style|jazz,rock,folk,techno|seconds|duration",
            "flights|flight|code|airline|Aero,Nordic,Pacific,Globe|distance|distance",
            "machines|machine|serial|site|Lyon,Turin,Gdansk,Porto|hours|running time",
            "recipes|recipe|name|course|soup,salad,dessert,main|calories|calories",
            "employees|employee|name|office|Oslo,Rome,Delhi,Lima|salary|salary",
            "bridges|bridge|name|material|steel,stone,wood,concrete|height|height",
        )
    ),
    "test": tuple(
        _table(line)
        for line in (
            "ships|ship|name|port|Genoa,Bergen,Durban,Busan|tons|weight",
            "hotels|hotel|name|town|Nice,Bruges,Split,Cork|rooms|number of rooms",
            "products|product|title|brand|Volta,Zephyr,Quill,Tundra|cost|cost",
            "trees|tree|tag|species|oak,pine,birch,maple|age|age",
            "museums|museum|name|district|north,south,center,harbor|visitors|number of visitors",
            "tickets|ticket|id|priority|low,medium,high,urgent|days|age in days",
        )
    ),
}
_QUESTIONS: dict[str, tuple[str, ...]] = {
    "SELECT COUNT(*) FROM {name}": ("How many {name} are there?", "Count all {name}."),
    "SELECT COUNT(*) FROM {name} WHERE {category} = '{value}'": (
        "How many {name} have the {category} {value}?",
        "Count the {name} whose {category} is {value}.",
    ),
    "SELECT {label} FROM {name} WHERE {category} = '{value}'": (
        "List the {label} of all {name} with the {category} {value}.",
        "Which {name} have the {category} {value}? Give the {label}.",
    ),
    "SELECT {label} FROM {name} WHERE {number} > {limit}": (
        "Give the {label} of every {singular} with a {meaning} above {limit}.",
        "List the {label} of the {name} whose {meaning} is more than {limit}.",
    ),
    "SELECT {label} FROM {name} WHERE {number} < {limit}": (
        "Give the {label} of every {singular} with a {meaning} below {limit}.",
        "List the {label} of the {name} whose {meaning} is less than {limit}.",
    ),
    "SELECT AVG({number}) FROM {name}": (
        "What is the average {meaning} of the {name}?",
        "Compute the mean {meaning} over all {name}.",
    ),
    "SELECT SUM({number}) FROM {name} WHERE {category} = '{value}'": (
        "What is the total {meaning} of the {name} with the {category} {value}?",
        "Add up the {meaning} of all {name} whose {category} is {value}.",
    ),
    "SELECT {label} FROM {name} ORDER BY {number} DESC LIMIT {few}": (
        "Give the {label} of the {few} {name} with the highest {meaning}.",
        "List the {label} of the top {few} {name} by {meaning}.",
    ),
    "SELECT {category}, COUNT(*) FROM {name} GROUP BY {category}": (
        "How many {name} are there for each {category}?",
        "Count the {name} per {category}.",
    ),
}


def _sql(chance: random.Random, split: str) -> Example:
    table = chance.choice(_TABLES[split])
    query = chance.choice(list(_QUESTIONS))
    words = {
        "name": table.name,
        "singular": table.singular,
        "label": table.label,
        "category": table.category,
        "number": table.number,
        "meaning": table.meaning,
        "value": chance.choice(table.values),
        "limit": str(chance.randint(10, 99)),
        "few": str(chance.randint(2, 5)),
    }
    question = chance.choice(_QUESTIONS[query]).format_map(words)
    prompt = f"Write one SQLite query. Table: {table.schema}.\nQuestion: {question}"
    return Example(prompt, query.format_map(words), table)


TASKS: dict[str, Callable[[random.Random, str], Example]] = {"contacts": _contact, "triage": _triage, "sql": _sql}
