"""Conversations of many turns without facts to ask for: what stands around the facts of a chat."""

from __future__ import annotations

import random
from collections.abc import Iterator

TOPICS = (
    ("growing tomatoes on a balcony", "sun, water and a pot that is deep enough"),
    ("baking bread with rye flour", "a slow dough and a very hot oven"),
    ("learning to swim as an adult", "short lessons and calm water"),
    ("repairing a squeaking door", "a drop of oil on each hinge"),
    ("choosing a tent for the rain", "the seams and the height of its water column"),
    ("reading more before going to bed", "a book that is easy to put down"),
    ("training for a long walk", "good shoes and a little more every week"),
    ("making friends after moving", "a club that meets at fixed hours"),
    ("painting a room without stains", "tape, thin coats and patience"),
    ("keeping bees on a roof", "shelter from wind and flowers nearby"),
    ("writing letters by hand", "thick paper and a pen that does not leak"),
    ("cooking for six people", "one large pot and a plan for the table"),
    ("sleeping well in summer", "shade by day and open windows by night"),
    ("playing the guitar in a small flat", "soft strings and neighbours who are out"),
    ("saving water in the garden", "mulch and watering before sunrise"),
    ("taking photographs in fog", "a slow shutter and something dark in front"),
    ("teaching a dog to wait", "short exercises and the same word each time"),
    ("mending a wool pullover", "thread of the same weight and a darning egg"),
    ("understanding the rules of chess", "endgames with very few pieces"),
    ("brewing coffee without a machine", "fresh beans and water just below boiling"),
    ("planning a week without a car", "a timetable and a bag with two handles"),
    ("singing in tune", "listening first and starting softly"),
    ("storing apples over the winter", "a cool cellar and space between the fruit"),
    ("crossing a city on a bicycle", "side streets and working lights"),
)
ASKS = (
    "I have been thinking about {topic}.",
    "My neighbour talks about nothing but {topic} these days.",
    "I have read three pages about {topic}, and they all disagree.",
    "Yesterday I tried my hand at {topic}, and it went badly.",
    "Let us talk about {topic} for a while.",
    "Somebody at lunch said that {topic} is a waste of time.",
    "I am back to {topic}, as you can see.",
    "A friend has given me a book about {topic}.",
)
WISHES = (
    "Where would you begin, if you had only a weekend for it?",
    "Is there anything to it?",
    "What do people usually get wrong?",
    "I would like advice that fits into a small budget.",
    "What would you say to a child who asks about it?",
    "Is there a rule of thumb that one can trust?",
    "I do not want to buy anything new for it.",
    "How long does it take until one sees a result?",
)
STARTS = (
    "People make it sound harder than it is.",
    "A good question, and one without a single answer.",
    "That depends on the season, and a little on your mood.",
    "I am glad that you ask before you spend money.",
    "You are not the first to wonder.",
    "It went badly for most of us in the beginning.",
    "Books are of little use here, hands are better.",
    "Let me keep it short.",
    "There is more than one way.",
)
KEYS = (
    "What you need is {key}.",
    "I would start with {key}.",
    "Almost everybody agrees on {key}.",
    "Most of it comes down to {key}.",
    "Think of {key}, and leave the rest for later.",
    "With {key} you are on the safe side.",
    "The secret, if there is one, is {key}.",
    "Nobody regrets to have thought of {key}.",
)
ENDS = (
    "Begin small, and look at the result after a few days.",
    "The rest is habit.",
    "Everything else is a matter of taste.",
    "Tell me how it went.",
    "Do not compare yourself with others.",
    "Once that is settled, you can enjoy it.",
    "Change only one thing at a time.",
    "If it fails, you have lost an afternoon and no more.",
    "",
)
THANKS = (
    "I see, thank you for telling me.",
    "Good to know.",
    "I did not know that.",
    "That is news to me.",
    "I will keep it in mind.",
)
"""How a reply begins when something is told."""


def small_talk(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Turns without an end: a message, and the reply to it. No pair of topic and first sentence
    comes twice before all have come."""
    while True:
        pairs = [(topic, ask) for topic in TOPICS for ask in ASKS]
        chance.shuffle(pairs)
        for (topic, key), ask in pairs:
            message = f"{ask.format(topic=topic)} {chance.choice(WISHES)}"
            parts = [chance.choice(some) for some in (STARTS, KEYS, ENDS)]
            yield message, " ".join(parts).format(key=key).rstrip()
