// The search.

function find(query) {
  $("search").value = query;
  results = search(model, query);
  found = new Set(results);
  resultAt = -1;
  const most = 200;
  const rows = results.slice(0, most).map((node, number) => {
    const type = node.outputs.length ? node.graph.values[node.outputs[0]].type.text : "";
    const home = node.graph === view.graph ? "" : `@${node.graph.name}`;
    const where = [home, node.scope, placeText(node.place)].filter(Boolean).join("  ");
    const row = nodeButton(node, node.kind === "node" ? node.op : node.kind);
    row.onclick = () => goToResult(number);
    row.append(element("small", {}, type), element("small", { className: "where" }, where));
    return row;
  });
  if (results.length > most) rows.push(element("p", {}, `and ${results.length - most} more`));
  const count = query.trim()
    ? element(
        "p",
        { className: "count" },
        results.length ? counted(results.length, "node") : "nothing found",
      )
    : null;
  $("results").replaceChildren(...[count, ...rows].filter(Boolean));
  $("results").hidden = !query.trim();
  draw();
}

function goToResult(number) {
  if (!results.length) return;
  resultAt = (number + results.length) % results.length;
  [...$("results").querySelectorAll("button")].forEach((row, at) =>
    row.classList.toggle("here", at === resultAt),
  );
  $("results").querySelector(".here")?.scrollIntoView({ block: "nearest" });
  reveal(results[resultAt]);
}
