"""draw.py owns the drawing of pictures by gnuplot: PNG for the docs, SVG for the report."""

import os
import subprocess

TERMINALS = {
    ".png": "pngcairo noenhanced size 1200,540 font 'DejaVu Sans,12' background '#ffffff'",
    ".svg": "svg noenhanced size 1200,540 font 'sans-serif,12' background '#ffffff'",
}

HEAD = """set terminal {terminal}
set output '{out}'
set multiplot layout 1,{columns} title '{title}'
set logscale x 2
set xlabel 'sequence length T'
set ylabel '{ylabel}'
set xtics (64,128,256,512,1024,2048,4096)
set xrange [56:4700]
set grid ytics lt 1 lw 1 lc rgb '#dddddd'
set border 3
set tics nomirror
set key bottom right
set yrange {yrange}
"""


def draw(out, work, title, ylabel, yrange, panels, extra=""):
    """panels: [(title, [(points, style)])], side by side, over T unless extra says otherwise. Writes the data
    and the script, then runs gnuplot."""
    name, form = os.path.splitext(os.path.basename(out))
    script = HEAD.format(
        terminal=TERMINALS[form],
        out=out,
        title=title,
        ylabel=ylabel,
        yrange=yrange,
        columns=len(panels),
    )
    script += extra
    for number, (panel, lines) in enumerate(panels):
        plots = []
        for index, (points, style) in enumerate(lines):
            if not points:
                continue
            data = os.path.join(work, f"{name}_{number}_{index}.dat")
            with open(data, "w") as f:
                f.writelines(f"{t} {v}\n" for t, v in points)
            drawn = "" if style.startswith("with ") else "with linespoints "
            plots.append(f"'{data}' {drawn}{style}")
        if plots:
            script += f"set title '{panel}'\nplot " + ", \\\n  ".join(plots) + "\n"
    path = os.path.join(work, name + ".gp")
    with open(path, "w") as f:
        f.write(script + "unset multiplot\n")
    subprocess.run(["gnuplot", path], check=True)
    print(out)
