#pragma once

#include "absl/strings/string_view.h"

namespace strata {

// What the K basis is measured on: prose, dialogue, a letter, instructions, figures and code, so
// that no one kind of text decides. About 1,200 tokens with common vocabularies.
inline constexpr absl::string_view kCalibrationText =
    R"text(The ferry left at half past six, before the fog had lifted from the estuary, and Marta counted the buoys as they slid by: red, green, red, green, each with its own gull. She had promised herself not to think about the house until the far shore, but the house came anyway, room by room, the way a tune comes back when you stop trying to remember it. First the kitchen with its blue tiles, then the stairs that complained on the third step, and finally the attic, where her grandfather had kept forty years of weather in brown notebooks.

He had written down everything. Rain in millimetres, wind by the old scale, the colour of the evening sky, and, in the margins, small remarks that had nothing to do with the weather at all. "Bread again too dark." "Anna laughed today." On the ninth of March 1961 he had recorded a pressure of 971 hectopascals and, beneath it, in the same careful hand, the single word "finally". Nobody alive could tell her what it meant.

"You'll want to see the harbour office first," said the man beside her. He wore a coat that had been expensive once. "They close at noon on Thursdays."

"Today is Wednesday."

"Is it?" He looked at the water as if it might have an opinion. "Then you have all the time in the world. Do you know what the old pilots used to say? Never trust a calm that arrives early."

"And what did they say about calms that arrive late?"

"Nothing. By then they were asleep." He smiled, and for a moment he looked like someone she ought to have recognised.

***

Dear Mr. Okafor,

Thank you for your letter of 14 October and for the three samples. We have tested each of them twice, once at room temperature and once after a night in the cold store at -18 degrees. Sample A kept its shape and lost less than 0.4 % of its weight. Sample B cracked along the seam on both occasions; I enclose a photograph. Sample C is the interesting one: it bent, it recovered, and a week later it was stronger than before. We do not understand why, and we would very much like to. Could you send us another two kilograms of it, together with the name of your supplier? We will of course pay for carriage.

With kind regards,
Ingrid Solheim, Head of Materials

***

How to repot a lemon tree. Wait until early spring, when the buds begin to swell. Choose a pot no more than five centimetres wider than the old one, because roots that sit in too much wet soil will rot before they spread. Mix two parts of loam with one part of coarse sand and a handful of grit. Water the tree the day before. Lift it by the base of the trunk, never by the branches; loosen the outer roots with your fingers, and cut away anything that is brown and soft. Set it at the same depth as before, fill in around it, press gently, and water until it drains. Keep it out of strong sun for ten days. If the leaves curl, it is thirsty; if they turn yellow, it has had too much to drink.

***

def moving_average(values, window):
    """Return the means of every `window` consecutive values."""
    if window <= 0:
        raise ValueError("window must be positive, not %d" % window)
    total, means = 0.0, []
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        if index >= window - 1:
            means.append(total / window)
    return means

for row in read_table("stations.csv"):
    name, heights = row[0], [float(x) for x in row[1:]]
    print(f"{name:>12}: {max(moving_average(heights, 7)):.2f} m")

***

Why is the sky dark at night? The question sounds childish, and for centuries it was answered badly. If the universe were endless, unchanging and evenly sprinkled with stars, then every line of sight would end, sooner or later, on the surface of one of them, and the whole sky would shine like the face of the sun. Distance does not help: a star ten times as far away looks a hundred times fainter, but there is room for a hundred times as many of them. Nor does dust help, for dust that is lit for ever must itself begin to glow. The true answer is stranger. Light needs time to travel, and the stars have not been burning for long enough. When we look far out we look back, and beyond a certain distance we see an age before there was anything to see. The darkness between the stars is not empty space; it is the beginning of the story, still arriving.

Question: A shop sells pencils in boxes of 12 and pens in boxes of 8. Lena buys 5 boxes of pencils and 3 boxes of pens, and gives a quarter of all of them to her class. How many does she keep?
Answer: She has 5 x 12 = 60 pencils and 3 x 8 = 24 pens, which makes 84. A quarter of 84 is 21, so she keeps 84 - 21 = 63.

The meeting was called to order at 19:05 with eleven members present. The treasurer reported a balance of 2,317.40, of which 600 is set aside for the roof. Mr. Petrov asked whether the roof could wait another year; the chair replied that it had waited four already, and that the bucket in the hall was no longer large enough. The motion to accept the second of the three quotations was carried by nine votes to one, with one abstention. There being no other business, tea was served.
)text";

}  // namespace strata
