"""test_map.py owns what the atom mapper is compared with: the published package, on its own weights.

    python3 test_map.py make test_map.tsv            reactions, and what the package answers
    python3 test_map.py compare MAP FOLDER           attention and confidences of the program MAP
    python3 test_map.py time MAP FOLDER              reactions a second of both

Needs rxnmapper 0.4.3, torch, "transformers<5", "setuptools<81", scipy, pandas, attrs, rdkit and, with --no-deps,
rxn-chem-utils and rxn-utils. The reactions are those of the package's tests, and some that templates make
of varied molecules. A line of the table is a reaction as the model reads it, what the package says of it
and the confidence, with tabs between. The package prints canonical SMILES of the mapped molecules; here the
numbers stand in the reaction as it was read, after a check that both mean the same molecules."""
import os
import random
import re
import resource
import subprocess
import sys
import time

import numpy as np
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem
from rxn.chemutils.conversion import smiles_to_mol
from rxn.chemutils.reaction_smiles import ReactionFormat, parse_any_reaction_smiles, to_reaction_smiles
from rxnmapper import RXNMapper
from rxnmapper.smiles_utils import is_atom, process_reaction

RDLogger.DisableLog("rdApp.*")

# ---- the package's tests: made canonical first, and as they are
CANONICAL = [
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
    "C=CCN=C=S.CNCc1ccc(C#N)cc1.NNC(=O)c1cn2c(n1)CCCC2>>C=CCN1C(C2=CN3CCCCC3=N2)=NN=C1N(C)CC1=CC=C(C#N)C=C1",
    "CC[O-]~[Na+].BrCC.[Na+]~[H-]>>CCOCC",
    "CC[O-].[Na+].BrCC.[Na+].[H-]>>CCOCC |f:0.1,3.4|",
    "CCOCC.[Na+]~[Br-]>>CC[O-]~[Na+].BrCC",
]
AS_IT_IS = [
    "C(C)O.BrC(C)>>CCOCC", "CCO.BrCFC>>CCOCFC", "COC(=O)CCBr.O=C[O-]->[K+]>>COC(=O)CCOC(=O)C", "[1*]C=C.O>>*CCO",
    "CC[O-]~[Na+].BrCC>>CCOCC", "CCC[O-]~[Na+].BrCC>>CCOCCC", "CC[O-].[Na+].BrCC>>CCOCC |f:0.1|",
    "NCC[O-]~[Na+].BrCC>>NCCOCC", "C(C)C[O-]~[Na+].BrCC>>C(C)COCC",
]

# ---- molecules to vary
ACIDS = """CC(=O)O CCC(=O)O O=C(O)c1ccccc1 O=C(O)c1ccc(Cl)cc1 COc1ccc(C(=O)O)cc1 CC(C)(C)OC(=O)N[C@@H](C)C(=O)O
    O=C(O)C1CCCCC1 O=C(O)/C=C/c1ccccc1 O=C(O)c1ccco1 O=C(O)c1cccs1 O=C(O)c1cccnc1 N#Cc1ccc(C(=O)O)cc1
    O=C(O)C(F)(F)F O=C(O)Cc1c[nH]c2ccccc12 CC(C)C[C@H](NC(=O)OCc1ccccc1)C(=O)O O=C(O)c1cc2ccccc2[nH]1""".split()
ALCOHOLS = """CO CCO CC(C)O OCc1ccccc1 OCCCl OC1CCCCC1 C#CCO C=CCO OCC(F)(F)F C[C@@H](O)c1ccccc1 COCCO
    OCCN1CCOCC1 OCc1ccncc1 OCCBr""".split()
AMINES = """CN CCN NCc1ccccc1 C1CCNCC1 C1COCCN1 Nc1ccccc1 COc1ccc(N)cc1 CC(C)(C)N C[C@H](N)c1ccccc1 CN1CCNCC1
    NCCc1c[nH]c2ccccc12 CNC Nc1ccncc1 Nc1nccs1 COC(=O)[C@@H](N)CC(C)C N[C@@H]1CCCC[C@H]1O""".split()
ARYL_HALIDES = """Brc1ccccc1 COc1ccc(Br)cc1 Brc1cccnc1 N#Cc1ccc(Br)cc1 Cc1ccc(I)cc1 Brc1ccc2ccccc2c1 O=Cc1ccc(Br)cc1
    Brc1cccs1 CC(=O)c1ccc(Br)cc1 Fc1ccc(Br)cc1F Brc1cnc2ccccc2c1 O=[N+]([O-])c1ccc(I)cc1""".split()
BORONIC = """OB(O)c1ccccc1 COc1ccc(B(O)O)cc1 OB(O)c1cccnc1 OB(O)c1ccc(F)cc1 CC1(C)OB(c2ccco2)OC1(C)C OB(O)c1cccs1
    OB(O)c1ccc(C(F)(F)F)cc1 C=CB(O)O Cn1cc(B2OC(C)(C)C(C)(C)O2)cn1""".split()
DIENES = """C=CC=C C=C(C)C(C)=C C1=CCC=C1 C=CC(=C)C c1ccoc1 C=CC=CC C1=CC=CCC1 COC=CC=C""".split()
DIENOPHILES = """C=CC(=O)OC O=C1C=CC(=O)O1 C=CC=O C=CC#N O=C1C=CC(=O)N1c1ccccc1 COC(=O)C#CC(=O)OC C=CC(C)=O
    O=C1C=CC(=O)c2ccccc21 CC(=O)/C=C/c1ccccc1""".split()
KETONES = """CC(C)=O CC(=O)c1ccccc1 O=C1CCCCC1 O=C1CCN(C(=O)OC(C)(C)C)CC1 CC(=O)c1cccnc1 O=C(c1ccccc1)c1ccccc1
    CCC(=O)CC O=C1CCc2ccccc21 CC(=O)C1CC1 O=C1c2ccccc2-c2ccccc21""".split()
ALDEHYDES = """CC=O O=Cc1ccccc1 O=Cc1ccc(Cl)cc1 COc1ccc(C=O)cc1 O=Cc1ccco1 CC(C)C=O O=Cc1ccc(N(C)C)cc1
    O=Cc1ccccn1 [2H]C(=O)c1ccccc1 O=Cc1cc(Br)ccc1O""".split()
ALKYL_HALIDES = """CI CCBr BrCc1ccccc1 C=CCBr CC(C)Br BrCC(=O)OCC ClCc1ccc(OC)cc1 BrCCCC#N C#CCBr ClCCN(C)C
    BrCc1ccc(C#N)cc1 ICCCC(F)(F)F""".split()
NITROARENES = """O=[N+]([O-])c1ccccc1 COc1ccc([N+](=O)[O-])cc1 Cc1cc([N+](=O)[O-])ccc1F O=C(O)c1ccc([N+](=O)[O-])cc1
    O=[N+]([O-])c1cccc2cccnc12 O=[N+]([O-])c1ccc(N2CCOCC2)cc1""".split()
SNAR = """O=[N+]([O-])c1ccc(F)cc1 O=[N+]([O-])c1ccccc1F Clc1ncccn1 Clc1nc(Cl)nc(Cl)n1 N#Cc1ccc(F)cc1 Clc1ccnc2ccccc12
    Fc1ccc(C(F)(F)F)cn1""".split()
GRIGNARDS = """C[Mg]Br CC[Mg]Cl [Br][Mg]c1ccccc1 C=C[Mg]Br CC(C)[Mg]Cl [Br][Mg]C1CC1""".split()
SULFONYL = """CS(=O)(=O)Cl Cc1ccc(S(=O)(=O)Cl)cc1 O=S(=O)(Cl)c1cccs1 O=[N+]([O-])c1ccc(S(=O)(=O)Cl)cc1""".split()
THIOLS = """CS CCS Sc1ccccc1 SCc1ccccc1 Sc1nc2ccccc2s1 CC(=O)S""".split()
ALKYNES = """C#Cc1ccccc1 C#CCCO C#C[Si](C)(C)C C#CCN(C)C C#CC1CC1 C#Cc1ccncc1""".split()
ALKENES = """C=Cc1ccccc1 C=CC(=O)OCC C=CCCCC C=C1CCCCC1 CC(C)=CC C1=CCCCC1 C/C=C/c1ccc(OC)cc1""".split()
EPOXIDES = """C1CO1 CC1CO1 c1ccc(C2CO2)cc1 C1CCC2OC2C1 ClCC1CO1 c1ccc(OCC2CO2)cc1""".split()
AZIDES = """CCN=[N+]=[N-] [N-]=[N+]=NCc1ccccc1 CCOC(=O)CN=[N+]=[N-] [N-]=[N+]=Nc1ccccc1""".split()
ISOCYANATES = """CN=C=O O=C=Nc1ccccc1 O=C=NC1CCCCC1 CCOC(=O)CN=C=O O=C=Nc1ccc(Cl)c(Cl)c1""".split()
YLIDES = """C=P(c1ccccc1)(c1ccccc1)c1ccccc1 COC(=O)C=P(c1ccccc1)(c1ccccc1)c1ccccc1""".split()
PHENOLS = """Oc1ccccc1 COc1ccc(O)cc1 Oc1cccnc1 Oc1ccc2ccccc2c1 Oc1ccc(Cl)cc1Cl CC(=O)Nc1ccc(O)cc1""".split()
ESTERS = """CCOC(C)=O COC(=O)c1ccccc1 CCOC(=O)C1CC1 COC(=O)[C@H](Cc1ccccc1)NC(=O)OC(C)(C)C CCOC(=O)c1ccncc1
    COC(=O)/C=C/c1ccco1""".split()
CARBAMATES = """CC(C)(C)OC(=O)NCc1ccccc1 CC(C)(C)OC(=O)N1CCNCC1 CC(C)(C)OC(=O)N[C@@H](C)C(=O)OC
    CC(C)(C)OC(=O)N1CCC(O)CC1""".split()
ARENES = """c1ccccc1 COc1ccccc1 Cc1ccc(C)cc1 c1ccsc1 c1ccc2ccccc2c1 Cn1cccc1""".split()
ACYL = """CC(=O)Cl O=C(Cl)c1ccccc1 CCC(=O)Cl O=C(Cl)c1ccco1 O=C(Cl)C1CCCCC1""".split()

# ---- templates: how many, what is varied, what changes, and what may lie in the flask
TEMPLATES = [
    (14, (ACIDS, ALCOHOLS), "[C:1](=[O:2])[OH].[OX2H:3][CX4:4]>>[C:1](=[O:2])[O:3][C:4]",
     ["O=S(=O)(O)O", "CN(C)c1ccncc1.C(=NC1CCCCC1)=NC1CCCCC1.ClCCl", ""]),
    (16, (ACIDS, AMINES), "[C:1](=[O:2])[OH].[NX3;!H0;!$(NC=O):3]>>[C:1](=[O:2])[N:3]",
     ["CCN(C(C)C)C(C)C.CN(C)C=O.CN(C)C(On1nnc2cccnc21)=[N+](C)C~F[P-](F)(F)(F)(F)F", "CCN=C=NCCCN(C)C~Cl.ClCCl", ""]),
    (14, (ARYL_HALIDES, BORONIC), "[c:1][Br,I].[#6:2]B(O)O>>[c:1][#6:2]",
     ["O=C([O-])[O-]~[K+]~[K+].C1COCCO1.O", "[Pd].CCO.Cc1ccccc1.O=C([O-])[O-]~[Na+]~[Na+]", ""]),
    (14, (DIENES, DIENOPHILES), "[C,c:1]=,:[C,c:2][C,c:3]=,:[C,c:4].[C:5]=,#[C:6]>>[C:1]1[C:2]=[C:3][C:4][C:5][C:6]1",
     ["Cc1ccccc1", ""]),
    (10, (KETONES,), "[C:1](=[O:2])([#6:3])[#6:4]>>[C:1]([OH:2])([#6:3])[#6:4]", ["CO.[BH4-]~[Na+]", "[Al+3]~[H-]~[H-]~[H-]~[H-]~[Li+]"]),
    (6, (NITROARENES,), "[c:1][N+:2](=O)[O-]>>[c:1][NH2;+0:2]", ["[Fe].Cl.CCO", "[Pd].[H][H].CO", "[Cl-]~[NH4+].[Zn]"]),
    (12, (ALKYL_HALIDES, AMINES), "[CX4:1][Br,I,Cl].[NX3;!H0:2]>>[C:1][N:2]", ["O=C([O-])[O-]~[K+]~[K+].CC#N", "CCN(CC)CC", ""]),
    (10, (ALKYL_HALIDES, PHENOLS), "[CX4:1][Br,I,Cl].[OH:2][c:3]>>[C:1][O:2][c:3]", ["O=C([O-])[O-]~[Cs+]~[Cs+].CN(C)C=O", ""]),
    (8, (ALKYL_HALIDES, THIOLS), "[CX4:1][Br,I,Cl].[SH:2]>>[C:1][S:2]", ["[H-]~[Na+].C1CCOC1", ""]),
    (10, (SNAR, AMINES), "[c:1][F,Cl].[NX3;!H0:2]>>[c:1][N:2]", ["CS(C)=O.CCN(C(C)C)C(C)C", ""]),
    (10, (ALDEHYDES, AMINES), "[CX3H1,CX3H0:1]=[O].[NX3;!H0:2]>>[C:1][N:2]",
     ["CC(=O)O[BH-](OC(C)=O)OC(C)=O~[Na+].ClCCCl", "CO.[BH3-]C#N~[Na+]"]),
    (10, (KETONES, GRIGNARDS), "[C:1](=[O:2])([#6:3])[#6:4].[#6:5][Mg]>>[C:1]([OH:2])([#6:3])([#6:4])[#6:5]", ["C1CCOC1", ""]),
    (8, (ALDEHYDES, YLIDES), "[CX3:1]=[O:2].[C:3]=[P:4]>>[C:1]=[C:3]", ["C1CCOC1", ""]),
    (10, (ARYL_HALIDES, AMINES), "[c:1][Br,I].[NX3;!H0:2]>>[c:1][N:2]", ["CC(C)(C)[O-]~[Na+].[Pd].Cc1ccccc1", ""]),
    (4, (CARBAMATES,), "CC(C)(C)OC(=O)[N:1]>>[N:1]", ["O=C(O)C(F)(F)F.ClCCl", "Cl.C1COCCO1"]),
    (6, (AMINES,), "[NX3;!H0;!$(NC=O):1]>>[N:1]C(=O)OC(C)(C)C", ["CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.CCN(CC)CC"]),
    (8, (SULFONYL, AMINES), "[S:1](=[O:2])(=[O:3])Cl.[NX3;!H0:4]>>[S:1](=[O:2])(=[O:3])[N:4]", ["c1ccncc1", ""]),
    (6, (ESTERS,), "[C:1](=[O:2])[O:3][CX4;!$(CC(C)(C)C)]>>[C:1](=[O:2])[OH:3]", ["[Li+]~[OH-].C1CCOC1.O", "[Na+]~[OH-].CO"]),
    (8, (AZIDES, ALKYNES), "[C,c:1][N:2]=[N+:3]=[N-:4].[CH:5]#[C:6]>>[*:1][n;+0:2]1[n;+0:3][n;+0:4][c:6][c:5]1",
     ["CC(C)(C)O.O.O=S(=O)([O-])[O-]~[Cu+2]", "[Cu]I"]),
    (8, (ALDEHYDES, KETONES), "[CX3H1:1]=[O:2].[CH3,CH2:3][C:4]=[O:5]>>[C:1]=[C:3][C:4]=[O:5]", ["CCO.[Na+]~[OH-]", ""]),
    (8, (ARENES, ACYL), "[cH:1].[C:2](=[O:3])Cl>>[c:1][C:2]=[O:3]", ["Cl[Al](Cl)Cl.ClCCl", ""]),
    (6, (ALCOHOLS,), "[CX4;H2,H1:1][OH:2]>>[C:1]=[O:2]", ["CC(=O)OI1(OC(C)=O)(OC(C)=O)OC(=O)c2ccccc21.ClCCl", "O=[Cr](=O)(O)O"]),
    (6, (ARENES,), "[cH:1]>>[c:1]Br", ["O=C1CCC(=O)N1Br.CC#N", "BrBr"]),
    (8, (ARYL_HALIDES, ALKENES), "[c:1][Br,I].[CH2,CH1:2]=[C:3]>>[c:1][C:2]=[C:3]", ["CC(=O)[O-]~CC(=O)[O-]~[Pd+2].CCN(CC)CC", ""]),
    (8, (ARYL_HALIDES, ALKYNES), "[c:1][Br,I].[CH:2]#[C:3]>>[c:1][C:2]#[C:3]", ["[Cu]I.CCN(CC)CC.[Pd]", ""]),
    (6, (ALKENES,), "[C:1]=[C:2]>>[C:1][C:2]", ["[H][H].[Pd].CCO"]),
    (6, (ALKENES,), "[C:1]=[C:2]>>[C:1]1[C:2]O1", ["O=C(OO)c1cccc(Cl)c1.ClCCl"]),
    (8, (EPOXIDES, AMINES), "[C:1]1[C:2][O:3]1.[NX3;!H0:4]>>[N:4][C:1][C:2][OH:3]", ["CCO", ""]),
    (8, (ISOCYANATES, AMINES), "[N:1]=[C:2]=[O:3].[NX3;!H0:4]>>[N:1][C:2](=[O:3])[N:4]", ["C1CCOC1", ""]),
]


def products(template, molecules):
    """The products that the template makes of the molecules, canonical, without repeats."""
    found = []
    for made in template.RunReactants([Chem.MolFromSmiles(m) for m in molecules]):
        try:
            Chem.SanitizeMol(made[0])
        except Chem.MolSanitizeException:
            continue
        smiles = Chem.MolToSmiles(made[0])
        if Chem.MolFromSmiles(smiles) and smiles not in found:
            found.append(smiles)
    return found


def made_reactions():
    rng = random.Random(2021)
    reactions = []
    for count, pools, smarts, flasks in TEMPLATES:
        template = AllChem.ReactionFromSmarts(smarts)
        tries = 0
        seen = set()
        while count and tries < 500:
            tries += 1
            molecules = tuple(rng.choice(pool) for pool in pools)
            found = products(template, molecules)
            if molecules in seen or not found:
                continue
            seen.add(molecules)
            left = list(molecules) + [m for m in rng.choice(flasks).split(".") if m]
            rng.shuffle(left)
            reactions.append(".".join(left) + ">>" + rng.choice(found))
            count -= 1
        if count:
            raise SystemExit("%s: %d reactions are missing" % (smarts, count))
    return reactions


def all_reactions():
    """Of each: the text that the model reads, and whether the package shall make it canonical."""
    as_read = []
    for reaction in CANONICAL + made_reactions():
        processed = process_reaction(parse_any_reaction_smiles(reaction))
        as_read.append((to_reaction_smiles(processed, ReactionFormat.STANDARD_WITH_TILDE), True))
    for reaction in AS_IT_IS:
        parsed = parse_any_reaction_smiles(reaction)
        as_read.append((to_reaction_smiles(parsed, ReactionFormat.STANDARD_WITH_TILDE), False))
    return list(dict.fromkeys(as_read))


# ---- what the package answers

def answer(mapper, text, canonical):
    (result,) = mapper.get_attention_guided_atom_maps([text], canonicalize_rxns=canonical, detailed_output=True)
    return result


def hydrogens(text):
    """Of each atom of a reaction, as rdkit counts them where nothing is sanitised."""
    return [atom.GetTotalNumHs() for side in text.replace("~", ".").split(">>")
            for atom in smiles_to_mol(side, sanitize=False).GetAtoms()]


def numbered(mapper, text, mapping):
    """The text with the numbers of the map: product atom i and the atom it is have i + 1."""
    tokens, count = mapper.tokenizer.basic_tokenizer.tokenize(text), hydrogens(text)
    left = sum(map(is_atom, tokens[:tokens.index(">>")]))
    number = [mapping.index(i) + 1 if i in mapping else 0 for i in range(left)]
    number += range(1, len(mapping) + 1)
    out, atom = [], 0
    for token in tokens:
        if is_atom(token):
            if number[atom] and token[0] == "[":
                token = "%s:%d]" % (token[:-1], number[atom])
            elif number[atom]:
                h = count[atom]
                token = "[%s%s%s:%d]" % (token, "H" if h else "", h if h > 1 else "", number[atom])
            atom += 1
        out.append(token)
    return "".join(out)


def molecules(text):
    """Both sides as lists of canonical molecules, to compare."""
    return [sorted(Chem.MolToSmiles(smiles_to_mol(m, sanitize=False)) for m in re.split(r"[.~]", side))
            for side in text.split(">>")]


def make(path):
    mapper = RXNMapper()
    with open(path, "w") as out:
        for text, canonical in all_reactions():
            result = answer(mapper, text, canonical)
            mapped = numbered(mapper, text, result["pxr_mapping_vector"])
            if molecules(mapped) != molecules(result["mapped_rxn"]):
                raise SystemExit("%s: %s is not %s" % (text, mapped, result["mapped_rxn"]))
            out.write("%s\t%s\t%.7f\n" % (text, mapped, result["confidence"]))


def table():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_map.tsv")
    with open(path) as lines:
        return [line.rstrip("\n").split("\t") for line in lines]


def compare(program, folder):
    mapper, exact = RXNMapper(), RXNMapper()
    exact.model.double()
    texts = [text for text, _, _ in table()]

    def lines(*options):
        run = subprocess.run([program, *options, "--file", "-", folder], input="".join(text + "\n" for text in texts),
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return iter(run.stdout.splitlines())

    attention, maps = lines("--attention"), lines()
    largest, sure, numbers = [0, 0, 0], 0, 0
    for text in texts:
        result = answer(mapper, text, False)
        package = result["tokensxtokens_attns"].astype(float)
        true = exact.convert_batch_to_attns([text])[0].numpy()
        got = np.array([next(attention).split() for _ in package], float)
        for i, (a, b) in enumerate(((got, package), (got, true), (package, true))):
            largest[i] = max(largest[i], np.abs(a - b).max())
        numbers += package.size
        mapped, confidence = next(maps).split("\t")
        sure = max(sure, abs(float(confidence) - result["confidence"]))
        if mapped != numbered(mapper, text, result["pxr_mapping_vector"]):
            print("another map: %s" % text)
    print("largest of %d differences of attention: from the package %.2g, from its model in float64 %.2g, "
          "the package's own %.2g; of confidence: %.2g" % (numbers, *largest, sure))


def times(program, folder):
    """Reactions a second of processor time, one thread each: the best of three passes over the table."""
    import torch
    torch.set_num_threads(1)
    texts = [text for text, _, _ in table()]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_map.tsv")
    mapper = RXNMapper()

    def children():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def program_pass():
        subprocess.run([program, "--file", path, folder], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))

    def package_pass(batch, call):
        for i in range(0, len(texts), batch):
            call(texts[i:i + batch])

    def maps(batch):
        mapper.get_attention_guided_atom_maps(batch, canonicalize_rxns=False)

    runs = [("map", children, program_pass)]
    for batch in (1, 16):
        runs.append(("rxnmapper, batches of %d" % batch, time.process_time, lambda b=batch: package_pass(b, maps)))
        runs.append(("its model alone", time.process_time, lambda b=batch: package_pass(b, mapper.convert_batch_to_attns)))
    for name, clock, run in runs:
        best = 1e30
        for _ in range(3):
            start = clock()
            run()
            best = min(best, clock() - start)
        print("%s: %.1f reactions/s" % (name, len(texts) / best), flush=True)


if __name__ == "__main__":
    {"make": make, "compare": compare, "time": times}[sys.argv[1]](*sys.argv[2:])
