// Columns of images: the pixels of PNG and JPEG files, and the classes that their subfolders name.
//
// A folder's samples are the images in it and below it, in the order of their paths' bytes; hidden
// files and files without an image's extension are none. If it has subfolders, each is a class.
// Several folders follow each other.
//
// In place of folders, a column may name .tar shards in the layout of WebDataset (tar_index.h) and
// one member of each sample: an image, an array (.npy), or a text that is a class.
//
// Pixels are uint8 of [channels, height, width], or [height, width, channels]. An image of another
// size is resized (images/resize.h), one of another depth is converted (images/image.h) if
// ImageSource::channels asks for it. Classes are int64, by the order of ColumnSpec::known,
// else sorted by their bytes.
//
// The first rank on a host lists the files and reads all headers, on several threads; its ranks
// share the list. A file is opened when its row is read.
#pragma once

#include "runtime/data/column_file.h"

namespace ofsdp::runtime {

// As ColumnFile::open. REQUIRES: spec.images.
Result<OpenedColumn> open_images(const ColumnSpec& spec, Communicator& communicator,
                                 MemoryLedger& ledger);

// Returns true if the folder, or one below it, has an image.
bool holds_images(const std::string& folder);

}  // namespace ofsdp::runtime
