/* Included before each file under analysis: tells the analyzers what err.h promises in words, that
 * these functions return a negative value. */
#include "base/err.h"
#define err_negative_(call)                        \
	({                                         \
		int negative_ = (call);            \
		if (negative_ >= 0)                \
			__builtin_unreachable();   \
		negative_;                         \
	})
#define err_set(...) err_negative_((err_set)(__VA_ARGS__))
#define err_errno(...) err_negative_((err_errno)(__VA_ARGS__))
#define err_wrap(...) err_negative_((err_wrap)(__VA_ARGS__))
