#include "@PREFIX@.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
