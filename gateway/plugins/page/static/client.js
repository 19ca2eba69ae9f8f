// The page of the Python client: the command with the address by which this browser sees the service.

import { $, copy } from "./dom.js";

const { href } = document.querySelector("a[href*='.whl']");
$("code").value = `pip install ${href.replace(/#.*/, "")}`;
$("copy").addEventListener("click", () => copy($("code").value, $("copy")));
