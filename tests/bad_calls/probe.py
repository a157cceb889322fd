import importlib
import sys
import time

from tests.bad_calls import harness as h

last = {}


def key(c, f):
    return last.get(str(c)) != [x for x in f if "frames" not in x]


def run(mods, show):
    t0 = time.time()
    n = 0
    for mod in mods:
        m = importlib.import_module("tests.bad_calls." + mod)
        for path, good in m.CALLS.items():
            t1 = time.time()
            try:
                f = h.function_of(path, good)
                f(*good.args, **good.kwargs)
                cases = list(h.cases_of(path, good))
            except Exception as e:
                print("NOT GOOD", path, type(e).__name__, e)
                continue
            refused = 0
            for c in cases:
                for tr in (False, True):
                    n += 1
                    try:
                        e = c.outcome(tr)
                    except BaseException as x:
                        print("HARNESS", c, x)
                        continue
                    where = "F" if tr else "T"
                    if e is None:
                        if not c.wrong.may and not tr:
                            print("ACCEPT", where, c)
                        elif "may" in show and not tr:
                            print("may", where, c)
                        continue
                    refused += 1
                    f = h.faults(c, e, h.__file__)
                    if not tr:
                        last[str(c)] = [x for x in f if "frames" not in x]
                    elif not f and last.get(str(c)):
                        print("ONLY T", c)
                    if f and (not tr or key(c, f)):
                        print(
                            "FAULT",
                            where,
                            c,
                            "|",
                            [x[:40] for x in f],
                            "|",
                            type(e).__name__,
                            str(e).split(chr(10))[0][:160],
                        )
                    elif "ok" in show and not tr:
                        print("ok", c, "|", type(e).__name__, str(e).replace(chr(10), " / ")[:300])
            if time.time() - t1 > 0.5:
                print("SLOW", path, round(time.time() - t1, 2), len(cases))
            if refused < 6:
                print("FEW", path, refused)
    print(n, "runs", time.time() - t0)


run(sys.argv[1].split(","), sys.argv[2:])
