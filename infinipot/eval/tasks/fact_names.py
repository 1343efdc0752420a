"""Names, places and causes in generated facts. They are invented, so no model knows the facts."""

_FIRST_NAMES = """
Agnes Bertil Carla Dario Edith Fabian Gunnar Hanne Ivo Judith Kaspar Lotte Milan Nora Oskar
Paula Quentin Ruben Sigrid Tobias Ulla Viktor Wanda Xenia Yannick Zita
"""
_SURNAMES = """
Adlerkron Bellweather Carrowan Dunmore Eskildsen Fairbrook Gadsby Hollowell Ingersten Jarrold
Kettering Lindqvist Marchbanks Norrgard Okonjo Pellegrin Quarles Rasmund Sandoval Thackery
Uxbridge Vandermeer Westerholt Yarrow Zabriskie Ashdown Brankovic Castellan Draycott Ellingham
Fenwick Granholm Haverkamp Ibsley Jessop Kowalchuk Lofthouse Mandeville Nettleship Osterman
Penhallow Radcliff Selwyn Trevanion Umberto Voss Wainwright Yelverton Abernathy Blomgren
"""
_TOWNS = """
Ostvale Nerrin Kaldbeck Marrowby Tornhaven Elmsund Brackmoor Sillerton Vexford Harrowmere
Dunsvik Penmarsh Lorbach Quillham Averton Stokkeby Winterley Grimsfold Calverne Ruddock
Aldermoor Fennick Skarholm Tressel Umberleigh Yarnsea Bexhollow Corvanne Drayholm Evenmouth
Fosterby Garrick Hexcombe Inverlee Jutwick Kessock Lanmoor Mistelby Nordcliff Ormsary
"""
FIRST_NAMES = tuple(_FIRST_NAMES.split())
SURNAMES = tuple(_SURNAMES.split())
TOWNS = tuple(_TOWNS.split())
STREETS = (
    "Tanner Lane", "Bishop Street", "Cooper Row", "Mill Terrace", "Orchard Road", "Saddler Street",
    "Chapel Hill", "Foundry Lane", "Weaver Street", "Harbour Steps", "Linden Avenue", "Priory Walk",
    "Quarry Road", "Rope Alley", "Station Parade", "Thistle Lane", "Vine Street", "Granary Square",
)  # fmt: skip
SHIPS = (
    "Albatross", "Belinda", "Corsair", "Daphne", "Esmeralda", "Firefly", "Guillemot", "Hesperus",
    "Isolde", "Jupiter", "Kestrel", "Leander", "Minerva", "Nautilus", "Ondine", "Petrel",
)  # fmt: skip
FIRMS = (
    "Halden Glass", "Brock and Sons", "Meridian Tools", "Pinewood Press", "Castor Textiles",
    "Larkfield Dairy", "Orion Clocks", "Tillman Pianos", "Verity Seeds", "Whitlock Paper",
    "Amber Insurance", "Delmar Shoes", "Foxglove Pharmacy", "Ironbridge Cycles", "Juniper Foods",
    "Keystone Maps", "Nimbus Umbrellas", "Redwood Instruments", "Silverline Buses", "Trident Ropes",
)  # fmt: skip
CAUSES = (
    ("a burst water pipe", "burst pipe|water"),
    ("a quarrel over lottery money", "quarrel|argu|disput|fight lotter"),
    ("a plague of wasps", "wasp"),
    ("a forged signature", "forg|fake|fals signature"),
    ("a broken elevator", "elevator|lift"),
    ("a lost passport", "passport"),
    ("the smell of fresh paint", "smell|odo|fume paint"),
    ("an unpaid electricity bill", "electric bill|unpaid|paid"),
    ("a fallen chimney", "chimney"),
    ("an outbreak of measles", "measles"),
    ("a stolen bicycle", "bicycle|bike"),
    ("a wrong address on the letter", "address"),
    ("a goat on the railway line", "goat"),
    ("a strike of the bus drivers", "strike|striking bus|driver"),
)  # fmt: skip
"""Each with the beginnings of words that an answer must hold."""
SPOTS = (
    ("behind the boiler", "boiler"),
    ("under the stone owl", "owl"),
    ("inside the piano stool", "piano stool|bench"),
    ("above the stable door", "stable"),
    ("in the flour barrel", "flour"),
    ("beneath the loose floorboard", "floorboard|board"),
    ("behind the portrait of the dean", "portrait|painting"),
    ("inside the empty beehive", "beehive|hive"),
)
