#pragma once

// Everything is built with hidden visibility; what libconvtime offers to others is marked with
// this.
#define CONVTIME_API __attribute__((visibility("default")))
