import { folderOf } from "./entry.js";

/** The dropped files, including those in folders, as `[file, folder]`; hidden files in folders are left out. */
export async function droppedFiles(transfer) {
  // Browsers empty the list when the event has ended, so all items are read before the first await.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const handles = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const files = [];
  for (const handle of handles) await walk(handle, files);
  return files;
}

async function walk(handle, files) {
  if (handle instanceof File) files.push([handle, ""]);
  else if (handle?.isFile) {
    files.push([await new Promise((resolve, reject) => handle.file(resolve, reject)), folderOf(handle.fullPath)]);
  }
  else if (handle?.isDirectory) {
    const reader = handle.createReader();
    for (;;) {
      // Each call returns at most some hundred entries.
      const children = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!children.length) return;
      for (const child of children) if (!child.name.startsWith(".")) await walk(child, files);
    }
  }
}
