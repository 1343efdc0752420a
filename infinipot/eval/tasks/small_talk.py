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
    "I have been thinking about {topic}. Where would you begin, if you had only a weekend for it?",
    "My neighbour talks about nothing but {topic} these days. Is there anything to it?",
    "Could you tell me what matters most in {topic}? I have read three pages that all disagree.",
    "Yesterday I tried my hand at {topic}, and it went badly. What do people usually get wrong?",
    "Let us talk about {topic} for a while. I would like advice that fits into a small budget.",
    "Somebody at lunch said that {topic} is a waste of time. I was not sure what to answer.",
    "What would you say to a child who asks about {topic}? Please keep it simple.",
    "I am back to {topic}, as you can see. Is there a rule of thumb that one can trust?",
)
REPLIES = (
    "With {topic}, most of it comes down to {key}. Begin small, look at the result after a few "
    "days, and change one thing at a time.",
    "People make it sound harder than it is. What you need is {key}; the rest is habit, and habits "
    "come by themselves.",
    "I would start with {key}. If that works, everything else about {topic} is a matter of taste.",
    "There are many opinions, but almost all of them agree on {key}. Try that first, and tell me "
    "how it went.",
    "The usual mistake in {topic} is to hurry. Think of {key}, take your time, and do not compare "
    "yourself with others.",
    "That depends on the season and on your mood. Still, {key} will never be wrong.",
    "Simply put, it is about {key}. Once that is settled, you can enjoy the rest of it.",
)


def small_talk(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Turns without an end: a message, and the reply to it. No pair of topic and message comes
    twice before all have come."""
    while True:
        pairs = [(topic, ask) for topic in TOPICS for ask in ASKS]
        chance.shuffle(pairs)
        for (topic, key), ask in pairs:
            reply = chance.choice(REPLIES)
            yield ask.format(topic=topic), reply.format(topic=topic, key=key)
