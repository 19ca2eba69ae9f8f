/** The files of what was dropped, folders included; hidden files of folders are left out. */
export async function droppedFiles(transfer) {
  // The list is emptied when the event is over, so everything is taken out of it before the first await.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const handles = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const files = [];
  for (const handle of handles) await walk(handle, files);
  return files;
}

async function walk(handle, files) {
  if (handle instanceof File) files.push(handle);
  else if (handle?.isFile) files.push(await new Promise((resolve, reject) => handle.file(resolve, reject)));
  else if (handle?.isDirectory) {
    const reader = handle.createReader();
    for (;;) {
      // Each call gives some hundred names at most.
      const children = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!children.length) return;
      for (const child of children) if (!child.name.startsWith(".")) await walk(child, files);
    }
  }
}
