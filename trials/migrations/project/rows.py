"""Write, change and delete rows of the application through its models: ``python -m …rows ROUND``.

Each round adds rows of its own and changes those of the rounds before.
"""

import sys

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.contrib.flatpages.models import FlatPage  # noqa: E402
from oscar.core.loading import get_model  # noqa: E402
from oscar.test.factories import create_order, create_product  # noqa: E402
from taggit.models import Tag  # noqa: E402
from wagtail.contrib.redirects.models import Redirect  # noqa: E402
from wagtail.models import Page  # noqa: E402

Category, Product = get_model("catalogue", "Category"), get_model("catalogue", "Product")
_ROWS = 12


def write(round_: str) -> None:
    """Write one round."""
    users = [User.objects.create_user(f"user {round_}-{n}", f"u{n}@example.com", "x") for n in range(_ROWS)]
    root = Page.get_first_root_node()
    pages = [root.add_child(instance=Page(title=f"Page {round_}-{n}")) for n in range(_ROWS)]
    for page in pages:
        page.title += " 😀"
        page.save_revision().publish()
    pages[0].get_children().delete()
    pages[1].delete()
    pages[2].move(pages[3], "last-child")
    Redirect.add_redirect(f"/old-{round_}", redirect_to="/new")
    Tag.objects.create(name=f"tag {round_}")
    FlatPage.objects.create(url=f"/flat-{round_}/", title="", content="x" * 10_000)
    for number in range(_ROWS):
        product = create_product(upc=f"{round_}-{number}", title=f"Product {number}", num_in_stock=10, price=number)
        product.title = f"{product.title} é"
        product.save()
    for number, user in enumerate(users[:3]):
        create_order(number=f"{round_}{number}", user=user)
    Category.add_root(name=f"Category {round_}").add_child(name="Child")
    users[-1].delete()
    User.objects.update(last_name=round_)
    Product.objects.filter(upc__endswith="-5").delete()


if __name__ == "__main__":
    write(sys.argv[1])
